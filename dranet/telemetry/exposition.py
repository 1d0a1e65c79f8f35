"""The text form of samples that are read and not recorded: thousands at a time, in tens of milliseconds.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. The client library makes objects of
every sample first, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dranet.telemetry.declared import Declared

Sample = tuple[str, float]
"""Labels as :func:`format_labels` writes them, and the value."""


def format_labels(labels: Mapping[str, str]) -> str:
    """``{device="net-1",port="2"}``; an empty value is the same as no label, and is left out."""
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items() if value)
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Exposition:
    """Collects families; each has its head once, and none without samples."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        """Samples so far."""

    def add(self, declared: Declared, samples: Iterable[Sample]) -> None:
        """All samples of one family. Of two with the same labels the later one counts."""
        lines = [f"{declared.name}{labels} {value!r}\n" for labels, value in dict(samples).items()]
        if lines:
            text = declared.help.replace("\\", r"\\").replace("\n", r"\n")
            head = f"# HELP {declared.name} {text}\n# TYPE {declared.name} {declared.kind}\n"
            self._chunks.append((head + "".join(lines)).encode())
            self.size += len(lines)

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)
