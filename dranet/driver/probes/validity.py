"""From when to when a certificate is good: as much of X.509 as it takes to know that (RFC 5280, 4.1).

Python's ``ssl`` tells it of the other side's certificate alone, and libraries that read one of ours are
larger than the driver.
"""

from __future__ import annotations

import binascii
from datetime import UTC, datetime
from pathlib import Path

from dranet.dataclass import dataclass

OLD_SHARE = 0.1
OLD_SECONDS = 7 * 86_400
"""With less of its time left than a tenth, and than a week, it should have been renewed: what renews by
itself does so at a third. Alert ``DranetCertificateEnds`` asks the same."""

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18
_BEFORE_VALIDITY = 3
"""Serial number, algorithm, issuer."""


@dataclass(frozen=True, slots=True)
class Validity:
    """Both in Unix seconds."""

    not_before: float
    not_after: float

    def is_old(self, now: float) -> bool:
        """It is over, or soon will be."""
        return self.not_after - now < min(OLD_SHARE * (self.not_after - self.not_before), OLD_SECONDS)


def read_validity(file: Path) -> Validity | None:
    """Of the first certificate in a PEM file, the one that is shown; ``None`` where that cannot be told."""
    try:
        text = file.read_text(errors="replace").partition(_BEGIN)[2].partition(_END)[0]
        return parse_validity(binascii.a2b_base64(text))
    except (OSError, ValueError):  # binascii.Error is one
        return None


def parse_validity(der: bytes) -> Validity:
    """Raises ValueError: this is no certificate."""
    _, certificate, _ = _read_value(der)
    _, rest, _ = _read_value(certificate)
    tag, _, behind = _read_value(rest)
    if tag == _VERSION:
        rest = behind
    for _ in range(_BEFORE_VALIDITY):
        _, _, rest = _read_value(rest)
    _, times, _ = _read_value(rest)
    tag, begin, times = _read_value(times)
    end_tag, end, _ = _read_value(times)
    return Validity(_parse_time(tag, begin), _parse_time(end_tag, end))


def _read_value(der: bytes) -> tuple[int, bytes, bytes]:
    """The first value's tag, its content, and what stands behind it."""
    if len(der) < 2:
        raise ValueError("it ends too early")
    tag, size, start = der[0], der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    if start + size > len(der):
        raise ValueError("it ends too early")
    return tag, der[start : start + size], der[start + size :]


def _parse_time(tag: int, content: bytes) -> float:
    """``YYMMDDhhmmssZ`` until 2049, ``YYYYMMDDhhmmssZ`` from then on."""
    if tag not in (_UTC_TIME, _GENERALIZED_TIME) or not content.endswith(b"Z"):
        raise ValueError("that is no time")
    text = content[:-1].decode("ascii")
    if tag == _UTC_TIME:
        text = f"{'19' if text >= '50' else '20'}{text}"
    if len(text) != len("YYYYMMDDhhmmss") or not text.isdecimal():
        raise ValueError("that is no time")
    day = (int(text[:4]), int(text[4:6]), int(text[6:8]))
    return datetime(*day, int(text[8:10]), int(text[10:12]), int(text[12:14]), tzinfo=UTC).timestamp()
