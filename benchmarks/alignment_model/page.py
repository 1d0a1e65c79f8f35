"""The results as a page of the documentation: ``template.md``, with every number from the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dranet.model.facts import Distance

_TEMPLATE = Path(__file__).with_name("template.md")
_SIZES = ("1", "2", "4", "8")
_OTHERS = {"random": "all take any", "mixed": "half take any", "aligned": "all are aligned"}
_BANDWIDTH_HEADER = ("machine", "aligned", "random, 1 GPU", *_SIZES[1:], "figures")
_CHECK_HEADER = (
    "experiment",
    "aligned",
    "unaligned, mean",
    "far (fitted)",
    "sd predicted",
    "range",
    "sd published",
    "in range",
)

Json = Mapping[str, Any]


def write_page(results: Json) -> str:
    """Markdown."""
    machines, how = results["machines"], results["how"]
    ours = [check for check in results["checks"] if check["chance"] == "1/8"]
    rival = [check for check in results["checks"] if check["chance"] != "1/8"]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        **_headline(machines["hgx-b200"]),
        random=_table(("machine", "near is", *(found.name for found in Distance)), _random(machines)),
        bandwidth=_table(_BANDWIDTH_HEADER, _bandwidth(machines)),
        room=_table(("machine", "other jobs", "1 GPU", *_SIZES[1:]), _room(machines)),
        checks=_table(_CHECK_HEADER, map(_check, ours)),
        good=sum(check["agrees"] for check in ours),
        rival=sum(check["agrees"] for check in rival),
        experiments=len(ours),
        sizes=", ".join(f"{size} ({_percent(share)})" for size, share in how["sizes"].items()),
        load=_percent(how["load"]),
        replicas=how["replicas"],
        jobs=how["jobs"],
        seed=how["seed"],
    )


def _headline(machine: Json) -> dict[str, str]:
    """For jobs of one GPU."""
    row, near = machine["random"]["by_size"]["1"], machine["bandwidth"]["near"]
    return {
        "b200_aligned": _percent(row["aligned"][0]),
        "b200_mean": f"{row['bandwidth'][0]:.1f}",
        "b200_sd": f"{row['bandwidth_sd']:.1f}",
        "b200_near": f"{near:.1f}",
        "b200_gain": _percent(near / row["bandwidth"][0] - 1),
    }


def _random(machines: Json) -> Iterator[Sequence[str]]:
    for machine in machines.values():
        shares = {int(found): _percent(share) for found, share in machine["random"]["levels"].items()}
        yield machine["title"], machine["near"], *(shares.get(found, "-") for found in Distance)


def _bandwidth(machines: Json) -> Iterator[Sequence[str]]:
    for machine in machines.values():
        figures, sizes = machine["bandwidth"], machine["random"]["by_size"]
        scale, unit = (1.0, "") if figures["of_this_machine"] else (100 / figures["near"], " %")
        cells = [_spread(sizes[size], scale, unit) if size in sizes else "-" for size in _SIZES]
        source = f"[{figures['source']}]({figures['url']})"
        yield machine["title"], f"{figures['near'] * scale:.1f}{unit}", *cells, source


def _room(machines: Json) -> Iterator[Sequence[str]]:
    for machine in machines.values():
        for policy, words in _OTHERS.items():
            sizes = machine[policy]["by_size"]
            cells = [_interval(sizes[size]["possible"]) if size in sizes else "-" for size in _SIZES]
            yield machine["title"] if policy == "random" else "", words, *cells


def _check(found: Json) -> Sequence[str]:
    numbers = [f"{found[name]:.2f}" for name in ("aligned", "unaligned", "far", "sd")]
    interval = f"{found['low']:.2f} to {found['high']:.2f}"
    verdict = "yes" if found["agrees"] else "**no**"
    return found["experiment"], *numbers, interval, f"{found['published_sd']:.2f}", verdict


def _table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _interval(estimate: Sequence[float]) -> str:
    value, plus_minus = estimate
    return _percent(value) if plus_minus <= 0.005 else f"{value * 100:.0f} ± {plus_minus * 100:.0f} %"


def _spread(row: Json, scale: float, unit: str) -> str:
    mean, spread = f"{row['bandwidth'][0] * scale:.1f}", row["bandwidth_sd"] * scale
    return f"{mean}{unit}" if spread < 0.05 else f"{mean} ± {spread:.1f}{unit}"
