"""What is generated from the .proto files is what they say."""

from __future__ import annotations

from pathlib import Path

import grpc_tools
import pytest
from grpc_tools import protoc

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
PROTOS = sorted(PLUGINS.glob("appliance_plugins/grpc/*.proto"))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_the_generated_module_is_current(proto, tmp_path) -> None:
    """``make protos`` writes them."""
    name = proto.relative_to(PLUGINS)
    included = [f"-I{PLUGINS}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    assert protoc.main(["protoc", *included, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(name)]) == 0
    for suffix in ("py", "pyi"):
        made = name.with_name(f"{proto.stem}_pb2.{suffix}")
        # The compiler's version stands in it; all else must be the same.
        assert _without_version(tmp_path / made) == _without_version(PLUGINS / made)


def _without_version(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    marks = ("# Protobuf Python Version", "    7,", "    6,")
    return [line for line in lines if not line.startswith(marks) and not line.strip().rstrip(",").isdigit()]
