"""Every module imports alone, without warnings and without anything heavy, and keeps to what it may import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "appliance": ROOT / "appliance",
    "appliance_engines": ROOT / "engines" / "appliance_engines",
    "appliance_retrieval": ROOT / "retrieval" / "appliance_retrieval",
    "appliance_auth": ROOT / "auth" / "appliance_auth",
    "appliance_plugins": ROOT / "plugins" / "appliance_plugins",
    "appliance_observability": ROOT / "observability" / "appliance_observability",
}
HEAVY = [
    "torch",
    "vllm",
    "pymilvus",
    "pinecone",
    "llama_index",
    "milvus_lite",
    "transformers",
    "onnxruntime",
    "numpy",
    "pandas",
    "markitdown",
    "openai",
]
MAX_LINES = 500
RUNS_AT_IMPORT = {"appliance.__main__"}


def sources() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            found[name] = path
    return found


SOURCES = sources()
# Third-party packages are imported once; each of our modules then gets a fork of its own, so none helps another.
IMPORTER = """
import importlib, json, os, sys
names, heavy = json.load(sys.stdin)
import alembic, click, litestar, litestar.handlers, msgspec, pluggy, rich.progress
import sqlalchemy.ext.asyncio, uvicorn, uvloop, yaml
problems = {}
for name in names:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
            found = sorted(h for h in heavy if h in sys.modules)
            said = f"imports {found}" if found else ""
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        if said := pipe.read().decode():
            problems[name] = said
    os.waitpid(child, 0)
json.dump(problems, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_every_module_imports_alone_without_warnings_and_without_anything_heavy():
    names = [
        name for name in SOURCES if name not in RUNS_AT_IMPORT and "contracts" not in name and "migrations" not in name
    ]
    command = [sys.executable, "-W", "error", "-c", IMPORTER]
    given = json.dumps([names, HEAVY])
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, cwd=ROOT, check=True)
    assert len(names) > 80
    assert json.loads(done.stdout) == {}


def test_what_a_parser_needs_brings_no_web_framework_and_no_database():
    """Its process starts again and again, and each file gets a fork of it: they are 27 MiB and most of its start."""
    program = (
        "import sys, appliance.knowledge.parse_worker, appliance.plugin; "
        "sys.exit('litestar' in sys.modules or 'sqlalchemy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, cwd=ROOT, check=True)


@pytest.mark.parametrize("name", SOURCES)
def test_no_module_is_long_and_each_says_what_it_is(name):
    text = SOURCES[name].read_text("utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{name} has no docstring"


def imported(path: Path) -> set[str]:
    """Dotted names of everything a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


@pytest.mark.parametrize(
    "name", [name for name in SOURCES if not name.startswith("appliance.") and name != "appliance"]
)
def test_a_plugin_imports_of_the_core_only_its_public_api(name):
    own = name.partition(".")[0]
    for module in imported(SOURCES[name]):
        top = module.partition(".")[0]
        if top == "appliance":
            assert module == "appliance.plugin"
        if top.startswith("appliance_"):
            assert top == own


def test_the_client_modules_import_nothing_of_the_server():
    folder = ROOT / "retrieval" / "appliance_client"
    theirs = {"appliance_client", "langchain_core", "llama_index", "openai", "pydantic", *sys.stdlib_module_names}
    for path in folder.rglob("*.py"):
        assert {module.partition(".")[0] for module in imported(path)} <= theirs, path.name
        assert ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert (folder / "py.typed").exists()


def test_the_core_imports_no_plugin_package():
    for name, path in SOURCES.items():
        if name.partition(".")[0] == "appliance":
            assert not [module for module in imported(path) if module.startswith("appliance_")], name


def test_every_entry_point_is_a_module_of_ours_that_exists():
    for point in entry_points(group="appliance"):
        if point.dist is not None and point.dist.name == "rag-appliance":
            assert point.module in SOURCES
            point.load()


def test_every_package_says_that_it_is_typed():
    for folder in FOLDERS.values():
        assert (folder / "py.typed").exists()
