"""Kubernetes quantities by value: ``1024Mi`` is ``1Gi``, ``0.5`` is ``500m``.

API servers rewrite a quantity in their own canonical spelling, so different text may be an equal amount. The
value is what a server makes of the text (``k8s.io/apimachinery/pkg/api/resource``): rounded away from zero to
a billionth, and cut to what a 64-bit integer holds. All arithmetic is on integers, hence exact.
"""

from __future__ import annotations

import re

_TEXT = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,6})|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{letter}i": 1024 ** (place + 1) for place, letter in enumerate("KMGTPE")}

NANO = 10**9
_MAX_NANOS = (2**63 - 1) * NANO
_MAX_DIGITS = 400
"""More than any quantity that means something; the time to convert longer texts grows with their square."""


def parse_quantity(text: str) -> int:
    """The value in billionths.

    Raises:
        ValueError: it is no quantity.
    """
    match = _TEXT.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f"{text[:40]!r} is not a quantity, e.g. 10Gi or 500m")
    part, suffix = match["part"] or "", match["suffix"] or ""
    digits = int((match["whole"] + part) or "0") * _BINARY.get(suffix, 1)
    power = int(match["exponent"] or _DECIMAL.get(suffix, 0)) - len(part) + 9
    nanos = _scale(digits, power)
    return -nanos if match["sign"] == "-" else nanos


def normalize_quantity(value: object) -> int | str:
    """Something to compare by: equal for two spellings of one amount. JSON has quantities as text or as
    numbers; anything else stays its text."""
    text = str(value)
    try:
        return parse_quantity(text)
    except ValueError:
        return text


def _scale(digits: int, power: int) -> int:
    """``digits`` times ten to the ``power``, rounded up and capped; absurd powers cost nothing."""
    if digits == 0:
        return 0
    if power > _MAX_DIGITS:
        return _MAX_NANOS
    if power < -2 * _MAX_DIGITS:
        return 1
    tens: int = 10 ** abs(power)
    scaled = digits * tens if power >= 0 else -(-digits // tens)
    return min(scaled, _MAX_NANOS)
