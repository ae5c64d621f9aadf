"""Objects that the configuration file names by class path, as ``package.module.Class``.

Only the file can name one: no route and no stored row leads here (E6).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from appliance.plugin import ConfigError


def load(path: str, where: str) -> Any:
    """A class, or a function or class method that makes an object. Raises ConfigError; ``where`` names the setting."""
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{where}: {path!r} is no class path; write it as package.module.Class")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
                continue
            raise ConfigError(f"{where}: {path} needs {error.name}, which is missing; pip install it") from error
        except ImportError as error:
            raise ConfigError(f"{where}: {path} cannot be imported: {error}") from error
        return _attribute(found, parts[length:], path, where)
    raise ConfigError(f"{where}: there is no package {parts[0]}; pip install the one that has {path}")


def _attribute(found: Any, names: list[str], path: str, where: str) -> Any:
    for name in names:
        found = getattr(found, name, None)
    if not callable(found):
        raise ConfigError(f"{where}: there is no class {path}; check the name, and pip install the package that has it")
    return found


def build_parts(value: Any, where: str) -> Any:
    """Arguments with every ``{class: ..., arguments: {...}}`` inside them made into an object. Raises ConfigError."""
    if isinstance(value, Mapping):
        if "class" in value and value.keys() <= {"class", "arguments"}:
            arguments = build_parts(value.get("arguments", {}), f"{where}.arguments")
            return call(load(str(value["class"]), f"{where}.class"), arguments, where)
        return {key: build_parts(part, f"{where}.{key}") for key, part in value.items()}
    if isinstance(value, list):
        return [build_parts(part, f"{where}[{i}]") for i, part in enumerate(value)]
    return value


def call(target: Any, arguments: Mapping[str, Any], where: str) -> Any:
    """Make an object. Raises ConfigError when it does not take its arguments, without their values."""
    try:
        return target(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}.arguments: do not fit {_name(target)}; see its documentation") from error


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """Arguments with ``{collection}`` and its like replaced; one that is a whole value keeps its type."""
    if isinstance(value, str):
        for name, given in names.items():
            if value == f"{{{name}}}":
                return given
            value = value.replace(f"{{{name}}}", str(given))
        return value
    if isinstance(value, dict):
        return {key: filled(part, names) for key, part in value.items()}
    return [filled(part, names) for part in value] if isinstance(value, list) else value


def mentions(value: Any, name: str) -> bool:
    """Whether ``{name}`` is anywhere in some arguments."""
    if isinstance(value, Mapping):
        return any(mentions(part, name) for part in value.values())
    if isinstance(value, list):
        return any(mentions(part, name) for part in value)
    return isinstance(value, str) and f"{{{name}}}" in value


def _name(target: Any) -> str:
    return str(getattr(target, "__qualname__", type(target).__name__))
