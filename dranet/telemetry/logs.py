"""One format of log lines, with context: ``log.info(..., extra={"context": {...}})``."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from dranet.terminal import printable


class TextFormatter(logging.Formatter):
    """``2026-11-21T12:00:00.123 INFO driver.prepare: message claim=ns/name``. A record is one line, even if
    names of pods and hardware contain control characters."""

    def format(self, record: logging.LogRecord) -> str:
        context: dict[str, Any] = getattr(record, "context", {})
        suffix = "".join(f" {key}={value}" for key, value in context.items())
        name = record.name.removeprefix("dranet.")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        message = f"{record.getMessage()}{suffix}"
        if not message.isprintable():
            message = printable(message)
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname} {name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the context's keys next to ``msg``."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **getattr(record, "context", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def set_up_logging(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
