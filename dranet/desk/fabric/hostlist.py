"""Names of nodes as Slurm writes lists of them: ``gpu-[001-032],login1``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dranet.desk.fabric.links import NaturalKey, natural_key

_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)
"""The digits at the end, as many as Slurm takes for a number."""


def compress(names: Iterable[str]) -> str:
    """The names, sorted, each once; consecutive numbers at their ends become ranges.

    A range keeps leading zeros, and joins only numbers that are written with as many digits or without
    zeros in front: ``n[9-10]``, ``n[09-10]``, but ``n[010,9]``.
    """
    series: dict[tuple[str, int], list[int]] = defaultdict(list)
    plain: dict[str, str] = {}
    for name in set(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain[name] = name
            continue
        prefix, digits = match.groups()
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        series[prefix, width].append(int(digits))
    ranges: dict[str, list[str]] = defaultdict(list)
    for (prefix, width), numbers in sorted(_widen(series).items()):
        ranges[prefix] += _ranges(sorted(numbers), width)
    parts = {prefix: _bracket(prefix, texts) for prefix, texts in ranges.items()}
    return ",".join(text for _, text in sorted((*plain.items(), *parts.items()), key=_order))


def _order(item: tuple[str, str]) -> NaturalKey:
    return natural_key(item[0])


def _widen(series: dict[tuple[str, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Numbers without leading zeros join those with them, if they have as many digits: 09 and 10."""
    widths: dict[str, set[int]] = defaultdict(set)
    for prefix, width in series:
        widths[prefix].add(width)
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for (prefix, width), numbers in series.items():
        for number in numbers:
            digits = len(str(number))
            found[prefix, width or (digits if digits in widths[prefix] else 0)].append(number)
    return found


def _ranges(numbers: Sequence[int], width: int) -> Iterator[str]:
    start = end = numbers[0]
    for number in (*numbers[1:], -1):
        if number == end + 1:
            end = number
            continue
        first, last = str(start).zfill(width), str(end).zfill(width)
        yield first if start == end else f"{first}-{last}"
        start = end = number


def _bracket(prefix: str, texts: Sequence[str]) -> str:
    is_single = len(texts) == 1 and "-" not in texts[0]
    return f"{prefix}{texts[0]}" if is_single else f"{prefix}[{','.join(texts)}]"


def expand(text: str) -> list[str]:
    """The names of a list that :func:`compress` has written."""
    found: list[str] = []
    for prefix, inner in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", text):
        if not inner:
            found.append(prefix)
        for part in filter(None, inner.split(",")):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            found += [f"{prefix}{str(number).zfill(len(first))}" for number in numbers]
    return found
