"""The command line: help with examples, JSON for programs, and failures in one line without a traceback."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import yaml
from commands import appliance, write_config
from distributions import offer  # noqa: F401 - a fixture

from appliance import __version__
from appliance.cli.main import main
from appliance.config import load
from appliance.knowledge import confinement
from appliance.storage import stores
from appliance.storage.database import Database


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """``run("check", "--json")`` in an empty folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["appliance", *arguments])
        code = 0
        try:
            main()
        except SystemExit as done:
            code = int(done.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


COMMANDS = [
    ("serve",),
    ("check",),
    ("config", "show"),
    ("plugins", "list"),
    ("models", "pull"),
    ("models", "list"),
    ("models", "rm"),
    ("sources", "list"),
    ("sources", "sync"),
    ("login",),
    ("logout",),
    ("whoami",),
    ("token",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Examples:" in out
    assert f"appliance {' '.join(command)}" in out


def test_help_and_version_need_no_configuration(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(word in out for word in ("serve", "check", "config", "plugins", "models"))
    assert run("--version") == (0, f"appliance, version {__version__}\n", "")


def test_without_a_configuration_the_commands_of_installed_plugins_are_there(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(f"\n  {word} " in out for word in ("keys", "login", "logout", "token", "whoami"))


def test_help_works_beside_a_broken_configuration_and_says_so(run, tmp_path):
    (tmp_path / "appliance.yaml").write_text("prot: 1")
    code, out, err = run("--help")
    assert code == 0
    assert "serve" in out
    assert err.startswith("warning: commands of plugins are missing: ")
    assert len(err.splitlines()) == 1


def test_commands_of_listed_plugins_join(run, tmp_path):
    write_config(tmp_path, plugins=["scripted", "api_keys"])
    _, out, _ = run("--help")
    assert "keys" in out
    code, out, _ = run("keys", "create", "--help")
    assert code == 0
    assert "Examples:" in out


def test_check_of_a_good_configuration(run, tmp_path):
    path = write_config(tmp_path)
    code, out, err = run("check")
    assert (code, err) == (0, "")
    assert out.startswith("appliance.yaml is good: 1 plugins, models m, ")
    code, out, _ = run("check", "--config", str(path), "--json")
    assert json.loads(out) | {"routes": 0} == {
        "ok": True, "config": str(path), "plugins": ["scripted"], "models": ["m"], "routes": 0,
        "not_pulled": [], "confinement_lacks": [], "vector_stores": "",
    }  # fmt: skip


def test_check_names_the_models_that_a_start_would_miss(run, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/config.json").write_text("{}")
    models = [
        {"name": name, "engine": "scripted", "source": source}
        for name, source in (("a", "wheel:some-model==1.0"), ("b", "file:here"), ("c", "hf:org/name"))
    ]
    write_config(tmp_path, plugins=["scripted", "sources"], models=models)
    code, out, _ = run("check")
    assert code == 0
    assert out.splitlines()[1:] == ["not pulled yet: a, c; run appliance models pull with the same --config"]
    assert json.loads(run("check", "--json")[1])["not_pulled"] == ["a", "c"]


def test_check_names_what_the_machine_lacks_to_confine_parsers(run, tmp_path, monkeypatch):
    monkeypatch.setattr(confinement, "_landlock_version", lambda: -1)
    embedder = {"name": "e", "embedder": "onnx"}
    plugins = ["memory", "onnx", "documents", "tokens"]
    write_config(tmp_path, plugins=plugins, models=[embedder], retrieval={"vector_store": "memory"})
    code, out, _ = run("check")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "parsed less confined: this machine lacks Landlock" in out
    assert run("check", "--json")[1].count("Landlock") == 1


def test_check_starts_nothing_and_writes_nothing(run, tmp_path):
    write_config(tmp_path)
    run("check")
    assert [path.name for path in tmp_path.iterdir()] == ["appliance.yaml"]


EMBEDS = {
    "plugins": ["memory", "onnx", "sources", "documents", "tokens"],
    "models": [{"name": "e", "embedder": "onnx"}],
    "retrieval": {"vector_store": "memory"},
}


def test_check_tells_of_stores_whose_vectors_are_not_where_the_configuration_looks(run, tmp_path):
    async def store_elsewhere() -> None:
        async with Database(load(tmp_path / "appliance.yaml").database_url) as database, database.session() as session:
            row = stores.new("handbook", "e")
            row.tenant, row.backend = "default", "milvus"
            session.add(row)

    write_config(tmp_path, **EMBEDS)
    assert json.loads(run("check", "--json")[1])["vector_stores"] == ""
    asyncio.run(store_elsewhere())
    code, out, _ = run("check")
    assert code == 0
    assert "\nvector stores: the vectors of 1 store are in another vector store than retrieval.vector_store" in out
    assert "appliance stores reconcile --repair" in json.loads(run("check", "--json")[1])["vector_stores"]


def test_check_leaves_a_database_of_another_version_as_it_is(run, tmp_path):
    write_config(tmp_path, **EMBEDS)
    path = load(tmp_path / "appliance.yaml").data_path / "appliance.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as old:
        old.executescript("CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('1')")
    before, written = path.read_bytes(), path.stat().st_mtime_ns
    assert run("check")[0] == 0
    assert [file.name for file in path.parent.iterdir()] == ["appliance.db"]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, written)


@pytest.mark.parametrize("kind", ["embedder", "reranker"])
def test_a_model_in_a_folder_that_is_not_there_fails_the_check(run, tmp_path, kind):
    model = {"name": "x", kind: "onnx" if kind == "embedder" else "late_interaction", "source": "file:nowhere"}
    plugins = [*EMBEDS["plugins"], "late_interaction"]
    others = EMBEDS["models"] if kind == "reranker" else []
    write_config(tmp_path, **{**EMBEDS, "plugins": plugins, "models": [*others, model]})
    code, _, err = run("check")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "nowhere" in err


FAILURES = {
    "missing": (None, "error: appliance.yaml does not exist; write it or name another with --config"),
    "no yaml": (
        "a: [b\nc: d",
        "error: appliance.yaml is not YAML: line 2, column 2: expected ',' or ']', but got ':'",
    ),
    "a tab": (
        "a:\n\tb: c",
        "error: appliance.yaml is not YAML: line 2, column 1: found character '\\t' that cannot",
    ),
    "bare variable in braces": (
        "server: {port: ${env.PORT}}",
        "error: appliance.yaml is not YAML: line 1, column 17: expected ',' or '}', but got '{'; put ${...} within",
    ),
    "no text": ("b: c\na: \x01", "error: appliance.yaml is not YAML: line 2, column 4: U+0001 is no text"),
    "no such day": (
        "a: 2024-99-99",
        "error: appliance.yaml holds a value that is none: month must be in 1..12; quote it",
    ),
    "a list": ("- a", "error: appliance.yaml must be a mapping with keys such as server"),
    "unknown key": ("sever: {}", "error: top level: object contains unknown field `sever`; did you mean server?"),
    "missing plugin": ("plugins: [nosuch]", "error: plugins: nosuch is not installed"),
    "unknown engine": (
        "models: [{name: m, engine: nosuch}]",
        "error: models[0].engine: no listed plugin provides nosuch",
    ),
    "bad option": (
        "plugins: [scripted]\nmodels: [{name: m, engine: scripted, options: {delay: soon}}]",
        "error: models[0].options.delay: expected `float`, got `str`",
    ),
    "bad level": ("observability: {log_level: loud}", "error: observability.log_level: "),
    "bad settings": (
        "plugins: [limits]\nplugin: {limits: {max_concurrent: 0}}",
        "error: plugin.limits.max_concurrent: ",
    ),
    "missing variable": ("data_dir: ${env.NO_SUCH_VARIABLE}", "error: data_dir: environment variable NO_SUCH_VARIABLE"),
    "unknown database": ("database: postgres://a@b/c", "error: database: Can't load plugin: "),
    "synchronous database": ("database: sqlite:///x.db", "error: database: the driver pysqlite is not asynchronous"),
    "unknown store": (
        "models: [{name: e, embedder: onnx}]\nretrieval: {vector_store: nosuch}",
        "error: retrieval.vector_store: no listed plugin provides nosuch",
    ),
    "no chunker": (
        "plugins: [memory, onnx]\nmodels: [{name: e, embedder: onnx}]\nretrieval: {vector_store: memory}",
        "error: plugins: retrieval needs a chunker; list tokens under plugins",
    ),
}


@pytest.mark.parametrize(("text", "message"), FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("command", [("check",), ("check", "--json")], ids=["plain", "json"])
def test_a_failing_check_is_one_line_and_exit_code_1(run, tmp_path, text, message, command):
    if text is not None:
        (tmp_path / "appliance.yaml").write_text(text)
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_a_plugin_that_breaks_at_import_fails_the_check(run, tmp_path, offer):  # noqa: F811
    offer("brokencli", "raise OSError('no card')")
    write_config(tmp_path, plugins=["scripted", "brokencli"])
    code, _, err = run("check")
    assert (code, err) == (1, "error: plugin brokencli failed to import: OSError: no card\n")


ENGINE = """
from appliance.plugin import hookimpl
@hookimpl
def appliance_engines(): return {{{kind!r}: lambda spec, context: {value}}}
"""


def test_an_engine_factory_that_breaks_fails_the_check_in_one_line(run, tmp_path, offer):  # noqa: F811
    offer("clumsy", ENGINE.format(kind="clumsy", value="1 / 0"))
    write_config(tmp_path, plugins=["clumsy"], models=[{"name": "m", "engine": "clumsy"}])
    code, _, err = run("check")
    assert (code, err) == (1, "error: models[0].engine: clumsy cannot be made: ZeroDivisionError: division by zero\n")


def test_an_engine_factory_that_makes_something_else_fails_the_check(run, tmp_path, offer):  # noqa: F811
    offer("odd", ENGINE.format(kind="odd", value="5"))
    write_config(tmp_path, plugins=["odd"], models=[{"name": "m", "engine": "odd"}])
    assert run("check")[2].startswith("error: models[0].engine: odd is no engine but int")


def test_config_show_prints_every_default_and_no_secret(run, tmp_path):
    write_config(tmp_path, models=[{"name": "m", "engine": "scripted", "options": {"api_key": "hunter2"}}])
    code, out, _ = run("config", "show")
    assert code == 0
    assert "hunter2" not in out
    shown = yaml.safe_load(out)
    assert shown["server"]["host"] == "127.0.0.1"
    assert shown["models"][0]["options"] == {"api_key": "***"}
    _, out, _ = run("config", "show", "--json")
    assert json.loads(out) == shown


def test_plugins_list_marks_those_in_use(run, tmp_path):
    write_config(tmp_path)
    code, out, _ = run("plugins", "list")
    assert code == 0
    assert any(line.startswith("* scripted ") for line in out.splitlines())
    assert any(line.startswith("  vllm ") for line in out.splitlines())
    _, out, _ = run("plugins", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["scripted"]["used"] is True
    assert rows["scripted"]["package"].startswith("rag-appliance ")


def test_plugins_list_works_without_a_configuration(run):
    assert run("plugins", "list")[0] == 0


def test_a_command_of_a_plugin_that_is_not_listed_says_which_to_list(tmp_path):
    write_config(tmp_path)
    done = appliance("login", "--server", "https://appliance.example", cwd=tmp_path)
    assert done.returncode == 2
    assert "the plugin login; list that under plugins in appliance.yaml" in done.stderr


def test_a_wrong_command_or_option_is_a_usage_error(run):
    for arguments in (("nosuch",), ("check", "--nosuch"), ("serve", "--port", "70000"), ("serve", "--port", "http")):
        code, _, err = run(*arguments)
        assert code == 2
        assert "Error: " in err
    assert "'http' is not a valid port number" in err


def test_the_process_ends_with_that_code_too(tmp_path):
    result = appliance("check", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: appliance.yaml does not exist")


def test_the_command_is_installed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout.strip() == f"appliance, version {__version__}"
