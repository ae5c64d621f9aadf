"""The documents: links lead somewhere, and what they promise of the plugin API is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from appliance import errors, plugin, protocols, testing

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
PLUGINS = (ROOT / "docs" / "plugins.md").read_text("utf-8")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"```.*?```", re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document):
    for target in _LINK.findall(_FENCE.sub("", document.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text("utf-8")), target


def imported_names(module: str) -> set[str]:
    """What the examples import from a module."""
    names = set()
    for block in re.findall(r"```python\n(.*?)```", PLUGINS, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == module:
                names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("module", [plugin, testing], ids=lambda module: module.__name__)
def test_everything_that_the_examples_import_is_exported(module):
    names = imported_names(module.__name__)
    assert names
    assert names <= set(module.__all__)


@pytest.mark.parametrize("module", [plugin, testing], ids=lambda module: module.__name__)
def test_every_export_exists_and_is_public(module):
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert not name.startswith("_")
        assert getattr(module, name) is not None


def test_every_protocol_and_every_error_that_a_plugin_may_raise_is_exported():
    theirs = {name for name, value in vars(protocols).items() if getattr(value, "__module__", "") == protocols.__name__}
    core_only = {"MethodNotAllowed", "UnsupportedMedia"}
    raised = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert not {name for name in theirs if not name.startswith("_")} - set(plugin.__all__)
    assert not raised - core_only - set(plugin.__all__)


def test_the_contract_classes_that_the_document_names_are_all_there_are():
    folder = ROOT / "appliance" / "testing" / "contracts"
    defined = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r"^class (\w+Contract)\b", path.read_text(), re.MULTILINE)
    }
    assert set(re.findall(r"`(\w+Contract)`", PLUGINS)) == defined
