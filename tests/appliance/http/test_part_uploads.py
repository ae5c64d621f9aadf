"""``/v1/uploads``: files that come in parts."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json

import httpx
import openai
import pytest
from client_types import exactly
from inline import Everything, Keys, provides
from loopback import raw_answer
from openai.types import Upload
from openai.types.uploads import UploadPart
from processes import forget_peak_memory, peak_memory
from sqlalchemy import select, update

from appliance.http import part_uploads
from appliance.http.part_uploads import MAX_PART_BYTES
from appliance.plugin import Principal
from appliance.storage.ids import now
from appliance.storage.tables.uploads import PendingUpload
from appliance.storage.tables.uploads import UploadPart as PartRow

WISH = {"filename": "notes.txt", "bytes": 9, "mime_type": "text/plain", "purpose": "assistants"}


async def begin(b, **fields) -> Upload:
    answer = await b.client.post("/v1/uploads", json=WISH | fields)
    assert answer.status_code == 200, answer.text
    return exactly(Upload, answer.json())


async def part(b, upload: Upload, data: bytes) -> str:
    answer = await b.client.post(f"/v1/uploads/{upload.id}/parts", files={"data": data})
    assert answer.status_code == 200, answer.text
    made = exactly(UploadPart, answer.json())
    assert (made.upload_id, made.object) == (upload.id, "upload.part")
    return made.id


async def complete(b, upload: Upload, ids: list[str], **fields) -> httpx.Response:
    return await b.client.post(f"/v1/uploads/{upload.id}/complete", json={"part_ids": ids} | fields)


def blobs(b) -> list[str]:
    return sorted(path.name for path in (b.runtime.config.data_path / "files").rglob("*") if path.is_file())


async def test_parts_are_put_together_in_the_order_that_the_client_names(box) -> None:
    async with box() as b:
        upload = await begin(b)
        assert (upload.status, upload.bytes, upload.file) == ("pending", 9, None)
        assert upload.expires_at - upload.created_at in (3600, 3601)
        third, first, second = [await part(b, upload, data) for data in (b"ghi", b"abc", b"def")]
        done = exactly(Upload, (await complete(b, upload, [first, second, third])).json())
        assert (done.status, done.file.filename, done.file.bytes, done.file.purpose) == (
            "completed", "notes.txt", 9, "assistants",
        )  # fmt: skip
        assert (await b.openai.files.content(done.file.id)).content == b"abcdefghi"
        assert blobs(b) == [done.file.id]


async def test_completing_again_gives_the_same_file(box) -> None:
    async with box() as b:
        upload = await begin(b)
        ids = [await part(b, upload, b"abcdefghi")]
        both = await asyncio.gather(complete(b, upload, ids), complete(b, upload, ids))
        again = await complete(b, upload, ids)
        answers = [answer.json() for answer in (*both, again) if answer.status_code == 200]
        assert again.status_code == 200
        assert len({answer["file"]["id"] for answer in answers}) == 1
        assert blobs(b) == [again.json()["file"]["id"]]


async def test_the_clients_own_helper_uploads_a_large_file_in_parts(box) -> None:
    content = bytes(range(256)) * 4096
    async with box() as b:
        done = await b.openai.uploads.upload_file_chunked(
            file=content, filename="a.bin", bytes=len(content), mime_type="text/plain", purpose="user_data",
            part_size=300_000, md5=hashlib.md5(content).hexdigest(),
        )  # fmt: skip
        assert done.status == "completed"
        assert (await b.openai.files.content(done.file.id)).content == content


async def test_an_upload_says_how_long_its_file_is_kept(box) -> None:
    async with box() as b:
        upload = await begin(b, expires_after={"anchor": "created_at", "seconds": 3600})
        done = (await complete(b, upload, [await part(b, upload, b"abcdefghi")])).json()
        assert done["file"]["expires_at"] - done["file"]["created_at"] in (3600, 3601)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"md5": "0" * 32}, 400, "md5"),
        ({"md5": "short"}, 400, "md5"),
        ({"part_ids": []}, 400, "part_ids"),
        ({"part_ids": ["part_never"]}, 404, "part_ids"),
        ({"part_ids": None}, 400, "part_ids"),
    ],
)
async def test_what_does_not_fit_together_is_refused_and_can_be_tried_again(box, fields, status, param) -> None:
    async with box() as b:
        upload = await begin(b)
        ids = [await part(b, upload, b"abcdefghi")]
        answer = await complete(b, upload, ids, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
        assert (await complete(b, upload, ids)).json()["status"] == "completed"


async def test_the_parts_must_hold_as_many_bytes_as_announced(box) -> None:
    async with box() as b:
        upload = await begin(b)
        ids = [await part(b, upload, b"abc")]
        for wrong in (ids, ids * 3):
            answer = await complete(b, upload, wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "part_ids")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": 2**60}, "bytes"),
        ({"bytes": "9"}, "bytes"),
        ({"bytes": None}, "bytes"),
        ({"purpose": "nonsense"}, "purpose"),
        ({"filename": ""}, "filename"),
        ({"mime_type": 5}, "mime_type"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
    ],
)
async def test_a_bad_field_is_named(box, fields, param) -> None:
    async with box() as b:
        answer = await b.client.post("/v1/uploads", json=WISH | fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_cancelled_upload_takes_no_more_and_leaves_nothing(box) -> None:
    async with box() as b:
        upload = await begin(b)
        ids = [await part(b, upload, b"abc")]
        for _ in range(2):
            assert (await b.openai.uploads.cancel(upload.id)).status == "cancelled"
        assert blobs(b) == []
        assert (await b.client.post(f"/v1/uploads/{upload.id}/parts", files={"data": b"x"})).status_code == 409
        assert (await complete(b, upload, ids)).status_code == 409
        assert blobs(b) == []


async def test_a_completed_upload_cannot_be_cancelled(box) -> None:
    async with box() as b:
        upload = await begin(b)
        await complete(b, upload, [await part(b, upload, b"abcdefghi")])
        with pytest.raises(openai.ConflictError):
            await b.openai.uploads.cancel(upload.id)


@pytest.mark.parametrize("ended_by", ["complete", "cancel"])
async def test_R14_an_upload_that_somebody_else_ends_while_it_is_put_together_says_what_became_of_it(
    box, monkeypatch, ended_by
) -> None:
    async with box() as b:
        upload = await begin(b)
        ids = [await part(b, upload, b"abcdefghi")]
        join = part_uploads._join

        async def late(*arguments) -> None:
            monkeypatch.setattr(part_uploads, "_join", join)
            other = await b.client.post(f"/v1/uploads/{upload.id}/{ended_by}", json={"part_ids": ids})
            assert other.status_code == 200
            await join(*arguments)

        monkeypatch.setattr(part_uploads, "_join", late)
        answer = await complete(b, upload, ids)
        if ended_by == "cancel":
            assert (answer.status_code, blobs(b)) == (409, [])
        else:
            assert answer.status_code == 200
            assert blobs(b) == [answer.json()["file"]["id"]]


async def test_parts_are_bounded_one_by_one_and_together(box) -> None:
    async with box() as b:
        upload = await begin(b, bytes=4)
        announced = (
            f"POST /v1/uploads/{upload.id}/parts HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {2 * MAX_PART_BYTES}\r\n\r\n"
        )
        status, _, body = await raw_answer(b.url, announced.encode())
        assert (status, json.loads(body)["error"]["param"]) == (413, "data")
        for data, status in ((b"12345678", 200), (b"9", 400)):
            answer = await b.client.post(f"/v1/uploads/{upload.id}/parts", files={"data": data})
            assert answer.status_code == status
        wrong = await b.client.post(f"/v1/uploads/{upload.id}/parts", files={"file": b"x"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "data")


async def test_an_expired_upload_says_so_and_is_swept_with_its_parts(box) -> None:
    async with box() as b:
        upload = await begin(b)
        ids = [await part(b, upload, b"abcdefghi")]
        await age(b, 1)
        answer = await complete(b, upload, ids)
        assert (answer.status_code, "expired" in answer.text) == (409, True)
        await b.runtime.housekeeper.tidy()
        assert blobs(b) == ids
        await age(b, 4000)
        await b.runtime.housekeeper.tidy()
        assert blobs(b) == []
        await age(b, 100_000)
        await b.runtime.housekeeper.tidy()
        async with b.runtime.database.session(write=False) as session:
            assert (await session.scalars(select(PendingUpload.id))).all() == []
            assert (await session.scalars(select(PartRow.id))).all() == []


async def age(b, seconds: int) -> None:
    """All uploads expired so long ago."""
    async with b.runtime.database.session() as session:
        await session.execute(update(PendingUpload).values(expires_at=now() - seconds))


async def test_the_sweep_of_bytes_without_a_row_leaves_parts_alone(box) -> None:
    from appliance.storage.sweep import sweep_blobs

    async with box() as b:
        ids = [await part(b, await begin(b), b"abc")]
        assert await sweep_blobs(b.runtime.database, b.runtime.blobs, older_than=-10) == 0
        assert blobs(b) == ids


async def test_O_38_an_upload_of_others_answers_as_one_that_never_was(box) -> None:
    callers = {
        "ann": Principal(id="key:1", user="ann", tenant="a"),
        "bob": Principal(id="key:2", user="bob", tenant="a"),
        "eve": Principal(id="key:3", user="ann", tenant="b"),
    }
    keys = provides(authenticators=[Keys(callers)], authorizers=[Everything()])
    async with box(config={}, keys=keys) as b:
        b.client.headers["authorization"] = "Bearer ann"
        upload = await begin(b)
        part_id = await part(b, upload, b"abc")
        for name in ("bob", "eve"):
            b.client.headers["authorization"] = f"Bearer {name}"
            for action, body in (("complete", {"json": {"part_ids": [part_id]}}), ("cancel", {}),
                                 ("parts", {"files": {"data": b"x"}})):  # fmt: skip
                theirs = await b.client.post(f"/v1/uploads/{upload.id}/{action}", **body)
                never = await b.client.post(f"/v1/uploads/upload_never/{action}", **body)
                assert (theirs.status_code, never.status_code) == (404, 404)
                assert theirs.text.replace(upload.id, "upload_never") == never.text
            own = await begin(b)
            stolen, unknown = await complete(b, own, [part_id]), await complete(b, own, ["part_never"])
            assert stolen.status_code == 404
            assert stolen.text.replace(part_id, "part_never") == unknown.text


@pytest.mark.slow
async def test_O_11_a_large_upload_is_put_together_without_being_held_in_memory(box) -> None:
    piece, count = 16 * 2**20, 12
    async with box() as b:
        upload = await begin(b, bytes=piece * count)
        data = io.BytesIO(b"\n" * piece)
        ids = []
        for _ in range(count):
            data.seek(0)
            answer = await b.client.post(f"/v1/uploads/{upload.id}/parts", files={"data": data})
            ids.append(answer.json()["id"])
        forget_peak_memory()
        before = peak_memory()
        assert (await complete(b, upload, ids)).json()["file"]["bytes"] == piece * count
        grown = (peak_memory() - before) >> 20
        assert grown < 64, f"{grown} MiB for a file of {piece * count >> 20} MiB"
