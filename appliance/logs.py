"""Logging: one line an event on stderr, as text or JSON. Prompts, answers and credentials are never logged."""

from __future__ import annotations

import json
import logging
import sys
import time

from appliance.config import ObservabilityConfig


class TextFormatter(logging.Formatter):
    """One line: names of files and documents in it may hold line ends and terminal codes, which are written as escapes.

    An exception's traceback follows on lines of its own.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line without a traceback."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(map(_shown, line))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, exception included."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def set_up_logging(config: ObservabilityConfig) -> None:
    """Configure the root logger."""
    # Nothing here prints them, and finding them out is half of a line's cost (see "Optimization" in logging's how-to).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("appliance").setLevel(config.log_level.upper())
