"""``appliance backup``: the files that it writes, and an appliance that goes on elsewhere."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from backup_kit import IDENTITY, mode
from click.testing import CliRunner
from commands import appliance, environment, served, write_config
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from eventually import eventually
from loopback import http_client
from worker_kit import install_plugin

from appliance.audit import AuditEvent
from appliance.audit.log import report
from appliance.cli.main import cli
from appliance.config import load

RECIPIENT = str(IDENTITY.to_public())


@pytest.fixture
def config(tmp_path):
    """An appliance that was used."""
    (tmp_path / "a").mkdir()
    path = write_config(tmp_path / "a")
    asyncio.run(report(load(path), [AuditEvent(action="keys.create", outcome="success", principal="cli:a")]))
    return path


@pytest.fixture
def elsewhere(tmp_path):
    """The configuration of another machine."""
    (tmp_path / "b").mkdir()
    return write_config(tmp_path / "b")


@pytest.fixture
def identity(tmp_path):
    path = tmp_path / "key.txt"
    path.write_text(f"# created: today\n# public key: {RECIPIENT}\n{IDENTITY}\n")
    return path


def run(*arguments: object):
    return CliRunner().invoke(cli, ["backup", *map(str, arguments)])


def error_of(*arguments: object) -> str:
    """The one line of a command that fails as expected."""
    result = run(*arguments)
    assert result.exit_code != 0
    return str(result.exception)


def test_a_backup_comes_back_elsewhere(config, elsewhere, identity, tmp_path) -> None:
    out = tmp_path / "backup.age"
    made = run("create", out, "--recipient", RECIPIENT, "--config", config)
    assert (made.exit_code, made.output) == (0, f"{out}: 3 rows, 0 files with 0.0 MiB\n")
    assert mode(out) == 0o600
    assert list(tmp_path.glob("*.part")) == []
    back = run("restore", out, "--identity", identity, "--config", elsewhere)
    assert back.exit_code == 0
    assert back.output.startswith("restored the backup of 20")
    log = CliRunner().invoke(cli, ["audit", "verify", "--config", str(elsewhere)])
    assert log.output.startswith("the log is whole: 3 entries")


def test_json_for_programs(config, elsewhere, identity, tmp_path) -> None:
    out = tmp_path / "backup.age"
    made = json.loads(run("create", out, "--recipient", RECIPIENT, "--config", config, "--json").output)
    assert made == {"path": str(out), "rows": 3, "files": 0, "bytes": 0, "lost": []}
    back = json.loads(run("restore", out, "--identity", identity, "--config", elsewhere, "--json").output)
    assert back["created"]
    assert back["version"]
    assert {name: back[name] for name in ("rows", "files", "indexing", "tenant", "lost")} == {
        "rows": 3,
        "files": 0,
        "indexing": 0,
        "tenant": None,
        "lost": [],
    }


def test_any_of_several_keys_opens_it(config, elsewhere, identity, tmp_path) -> None:
    from pyrage import x25519

    out, other = tmp_path / "backup.age", str(x25519.Identity.generate().to_public())
    run("create", out, "--recipient", other, "--recipient", RECIPIENT, "--config", config)
    assert run("restore", out, "--identity", identity, "--config", elsewhere).exit_code == 0


def test_an_ssh_key_opens_it(config, elsewhere, tmp_path) -> None:
    made, out, key = Ed25519PrivateKey.generate(), tmp_path / "backup.age", tmp_path / "id_ed25519"
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    run("create", out, "--recipient", f"{public} me@desk", "--config", config)
    assert run("restore", out, "--identity", key, "--config", elsewhere).exit_code == 0


@pytest.mark.slow  # scrypt takes seconds for each guess, and is to
def test_a_passphrase_opens_it_and_no_other_and_the_tools_of_age_can_too(config, elsewhere, identity, tmp_path) -> None:
    from pyrage import decrypt, passphrase, x25519

    out, right, wrong = tmp_path / "backup.age", tmp_path / "right", tmp_path / "wrong"
    right.write_text("correct horse battery\n")
    wrong.write_text("tr0ub4dor\n")
    run("create", out, "--passphrase-file", right, "--config", config)
    asked = ("restore", out, "--config", elsewhere)
    assert error_of(*asked, "--passphrase-file", wrong) == "--passphrase-file: the passphrase does not open the backup"
    assert error_of(*asked, "--identity", identity) == "the backup is locked by a passphrase; give --passphrase-file"
    assert not (elsewhere.parent / "data" / "appliance.db").exists()
    assert run(*asked, "--passphrase-file", right).exit_code == 0

    # As docs/operations.md has it: sed splits the file, and age opens both parts.
    locked, stream = (
        subprocess.run(["sed", script, str(out)], check=True, capture_output=True, timeout=30).stdout
        for script in ("/^-----END AGE/q", "1,/^-----END AGE/d")
    )
    own = passphrase.decrypt(locked, "correct horse battery").decode().strip()
    assert b"backup.json" in decrypt(stream, [x25519.Identity.from_str(own)])


def test_a_backup_for_keys_is_not_asked_a_passphrase(config, elsewhere, tmp_path) -> None:
    out, phrase = tmp_path / "backup.age", tmp_path / "phrase"
    phrase.write_text("a")
    run("create", out, "--recipient", RECIPIENT, "--config", config)
    told = error_of("restore", out, "--passphrase-file", phrase, "--config", elsewhere)
    assert told == "the backup is locked for keys, or is none; give --identity"


def test_backups_go_through_pipes(config, elsewhere, identity, tmp_path) -> None:
    command = [sys.executable, "-m", "appliance", "backup"]
    made = subprocess.run(
        [*command, "create", "-", "--recipient", RECIPIENT, "--config", str(config)],
        capture_output=True, timeout=60, check=True, env=environment(),
    )  # fmt: skip
    assert made.stdout.startswith(b"age-encryption.org/v1\n")
    assert made.stderr == b"-: 3 rows, 0 files with 0.0 MiB\n"
    back = subprocess.run(
        [*command, "restore", "-", "--identity", str(identity), "--config", str(elsewhere), "--json"],
        input=made.stdout, capture_output=True, timeout=60, check=True, env=environment(),
    )  # fmt: skip
    assert json.loads(back.stdout)["rows"] == 3


def test_a_backup_replaces_nothing(config, tmp_path) -> None:
    out = tmp_path / "backup.age"
    out.write_text("mine")
    told = error_of("create", out, "--recipient", RECIPIENT, "--config", config)
    assert told == f"{out} is there already, and backups replace nothing; name another file"
    assert out.read_text() == "mine"


def test_what_a_killed_backup_has_left_is_written_over_and_made_private(config, tmp_path) -> None:
    out = tmp_path / "backup.age"
    left = tmp_path / "backup.age.part"
    left.write_bytes(b"x" * 1_000_000)
    left.chmod(0o644)
    assert run("create", out, "--recipient", RECIPIENT, "--config", config).exit_code == 0
    assert not left.exists()
    assert mode(out) == 0o600
    assert out.stat().st_size < 100_000


def test_a_backup_that_fails_leaves_no_file(tmp_path) -> None:
    config = write_config(tmp_path)
    told = error_of("create", tmp_path / "backup.age", "--recipient", RECIPIENT, "--config", config)
    assert told.startswith("there is no database that this version can read")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["appliance.yaml"]


def test_a_disk_that_is_full_is_told_in_one_line(config) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "appliance", "backup", "create", "-", "--recipient", RECIPIENT, "--config", config],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, text=True, env=environment(),
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert "standard output cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give --recipient KEY, or --passphrase-file FILE"),
        (["--recipient", "age1x", "--passphrase-file", "f"], "give --recipient KEY, or --passphrase-file FILE"),
        (["--recipient", "age1x"], "--recipient: age1x... is no public key; give one that begins with age1"),
        (["--recipient", "ssh-dss AAAA"], "--recipient: ssh-dss AAAA... is no public key"),
        (["--recipient", str(IDENTITY)], "--recipient: this is a secret key; give the public one"),
        (["--passphrase-file", "/nonexistent"], "--passphrase-file: /nonexistent cannot be read (No such file"),
        (["--passphrase-file", "/dev/null"], "--passphrase-file: /dev/null begins with an empty line"),
    ],
)
def test_a_bad_key_is_told_before_anything_is_written(config, tmp_path, options, told) -> None:
    result = run("create", tmp_path / "backup.age", "--config", config, *options)
    found = result.output + str(result.exception)
    assert told in found
    assert str(IDENTITY) not in found
    assert list(tmp_path.glob("backup.age*")) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "--identity: the file holds no secret key"),
        (b"# only words\n", "--identity: the file holds no secret key"),
        (b"AGE-SECRET-KEY-1XXX\n", "--identity: the file holds no secret key that can be used"),
        (b"\xff\xfe", "--identity: the file holds no secret key that can be used"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\nno\n", "--identity: the file holds no secret key that can be used"),
    ],
)
def test_a_bad_identity_is_told(elsewhere, tmp_path, content, told) -> None:
    (tmp_path / "key.txt").write_bytes(content)
    found = error_of("restore", tmp_path / "backup.age", "--identity", tmp_path / "key.txt", "--config", elsewhere)
    assert found.startswith(told)


def test_a_backup_that_is_not_there_is_told(elsewhere, identity, tmp_path) -> None:
    told = error_of("restore", tmp_path / "none.age", "--identity", identity, "--config", elsewhere)
    assert told == f"{tmp_path / 'none.age'} cannot be read (No such file or directory); check its name and rights"


@pytest.mark.parametrize("command", [[], ["create"], ["restore"]])
def test_help_has_examples(command) -> None:
    assert "Examples:" in run(*command, "--help").output


def moved(folder: Path, **changes: object) -> Path:
    """The configuration of an appliance with documents and keys."""
    folder.mkdir()
    return write_config(
        folder,
        plugins=["scripted", "memory", "documents", "tokens", "scripted_embedder", "api_keys", "rbac"],
        models=[{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        retrieval={"vector_store": "memory"},
        **changes,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_F9_an_appliance_that_serves_is_backed_up_and_goes_on_elsewhere_on_postgresql(
    tmp_path, postgres, identity
) -> None:
    plugins = install_plugin(tmp_path / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder")  # fmt: skip # noqa: E501
    config = moved(tmp_path / "a")
    target = moved(tmp_path / "b", database=postgres.database())
    command = ["keys", "create", "--admin", "--json", "--config", config]
    key = json.loads(appliance(*command, cwd=tmp_path, python_path=plugins).stdout)["key"]
    ask = {"authorization": f"Bearer {key}"}
    out = tmp_path / "backup.age"
    with served("--config", str(config), cwd=tmp_path, python_path=plugins) as running:
        async with http_client(base_url=running.url, headers=ask, timeout=30) as client:
            store_id = (await client.post("/v1/vector_stores", json={"name": "birds"})).json()["id"]
            for number in range(3):
                upload = {"file": (f"{number}.txt", f"the zebrafinch number {number}")}
                file = (await client.post("/v1/files", files=upload, data={"purpose": "assistants"})).json()
                await client.post(f"/v1/vector_stores/{store_id}/files", json={"file_id": file["id"]})
            made = await asyncio.to_thread(
                appliance, "backup", "create", out, "--recipient", RECIPIENT, "--config", config,
                cwd=tmp_path, python_path=plugins,
            )  # fmt: skip
        assert made.returncode == 0, made.stderr
        again = appliance("backup", "restore", out, "--identity", identity, "--config", config, cwd=tmp_path)
        assert again.returncode == 1
        assert "is in use; stop the appliance" in again.stderr
    back = appliance(
        "backup", "restore", out, "--identity", identity, "--config", target, cwd=tmp_path, python_path=plugins
    )
    assert back.returncode == 0, back.stderr
    assert "3 files will be indexed by the next appliance serve" in back.stdout
    with served("--config", str(target), cwd=tmp_path, python_path=plugins) as running:
        async with http_client(base_url=running.url, headers=ask, timeout=30) as client:

            async def indexed() -> bool:
                counts = (await client.get(f"/v1/vector_stores/{store_id}")).json()["file_counts"]
                return counts["completed"] == 3

            await eventually(indexed, 60)
            found = await client.post(f"/v1/vector_stores/{store_id}/search", json={"query": "zebrafinch"})
    texts = {hit["content"][0]["text"] for hit in found.json()["data"]}
    assert texts == {f"the zebrafinch number {number}" for number in range(3)}
    verified = appliance("audit", "verify", "--config", target, cwd=tmp_path, python_path=plugins)
    assert verified.stdout.startswith("the log is whole"), verified.stderr
    assert mode(out) == 0o600
