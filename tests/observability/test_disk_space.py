import errno
import logging

import pytest
from inline import provides
from litestar import get
from loopback import assert_openai_error

from appliance.plugin import ConfigError, EngineError
from appliance.testing import make_app
from appliance_observability import disk_space

TOO_MUCH = 2**40
"""MiB that no disk has."""


def settings(min_free_mib: int) -> dict:
    return {"plugins": ["disk_space"], "plugin": {"disk_space": {"min_free_mib": min_free_mib}}}


async def test_enough_space_is_ready(box):
    async with box(None, settings(1)) as b:
        assert (await b.client.get("/readyz")).json()["problems"] == {}


async def test_a_disk_that_is_nearly_full_is_not_ready_and_says_so(box):
    async with box(None, settings(TOO_MUCH)) as b:
        response = await b.client.get("/readyz")
        assert response.status_code == 503
        problem = response.json()["problems"]["disk_space"]
        assert problem.startswith("data_dir has ")
        assert "plugin.disk_space.min_free_mib" in problem
        assert (await b.client.get("/livez")).status_code == 200
        assert (await b.chat()).status_code == 200


class Disk:
    """What ``statvfs`` says: so many MiB free, as bits of ``flag`` say."""

    f_frsize = 4096

    def __init__(self, free: int, flag: int = 0) -> None:
        self.f_bavail, self.f_flag = free * 256, flag


async def test_it_is_ready_again_once_there_is_space(box, monkeypatch):
    disk = Disk(free=511)
    monkeypatch.setattr(disk_space.os, "statvfs", lambda folder: disk)
    async with box(None, {"plugins": ["disk_space"]}) as b:
        assert "has 511 MiB left" in (await b.client.get("/readyz")).json()["problems"]["disk_space"]
        disk.__init__(free=512)
        assert (await b.client.get("/readyz")).status_code == 200


async def test_a_disk_that_is_read_only_is_not_ready(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_space.os, "statvfs", lambda folder: Disk(free=9999, flag=disk_space.os.ST_RDONLY))
    assert "read-only" in await disk_space.check(tmp_path, 1)


async def test_a_folder_that_is_gone_is_not_ready(tmp_path):
    assert (await disk_space.check(tmp_path / "gone", 1)).startswith("data_dir cannot be read: No such file")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
async def test_a_disk_that_fails_is_503_in_calls_and_in_every_other_route(box, caplog, code):
    @get("/fails", opt={"action": "public"}, sync_to_thread=False)
    def fails() -> None:
        raise OSError(code, "it fails", "/secret/place")

    async def failing(call):
        raise OSError(code, "it fails", "/secret/place")

    guard = provides(input_filters=[Filter(failing)], routes=[fails])
    async with box(None, {"plugins": ["disk_space"]}, guard=guard) as b:
        for response in (await b.client.get("/fails"), await b.chat()):
            error = assert_openai_error(response, 503)
            assert error["message"].startswith("a disk of this server fails")
            assert response.headers["retry-after"] == "60"
    assert caplog.text.count("a disk fails: ") == 2


class Filter:
    def __init__(self, filter_input):
        self.filter_input = filter_input

    async def filter_passages(self, call, passages):
        return passages


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOENT, "gone"), OSError("no number"), ValueError("x"), EngineError("y")]
)
def test_other_errors_are_left_alone(error, caplog):
    with caplog.at_level(logging.DEBUG):
        assert disk_space.appliance_on_error(error) is None
    assert not caplog.messages


def test_a_bound_below_one_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"plugin\.disk_space\.min_free_mib"):
        make_app(settings(0), folder=tmp_path)
