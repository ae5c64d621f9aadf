"""What the commands of the ``appliance`` command line share, those of plugins included."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

DEFAULT_CONFIG = "appliance.yaml"
config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIG,
    show_default=True,
    help="The configuration file.",
)
"""Gives the command ``config_path``, a ``Path``."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
"""Gives the command ``as_json``, a ``bool``."""


def examples(*lines: str) -> str:
    """An epilog with commands that can be copied."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_json(value: object, *, err: bool = False) -> None:
    """Print a value as indented JSON, on standard error with ``err``."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), err=err)
