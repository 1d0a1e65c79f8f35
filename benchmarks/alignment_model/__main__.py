"""``python -m benchmarks alignment_model``: compute, write results, page and picture. A minute or two."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.alignment_model.figures import BOTH_ENDS, EXPERIMENTS, ONE_IN_EIGHT, Check, check
from benchmarks.alignment_model.machines import Machine, read_machines
from benchmarks.alignment_model.page import write_page
from benchmarks.alignment_model.plot import draw
from benchmarks.alignment_model.simulate import JOBS, LOAD, REPLICAS, SEED, SIZES, Policy, simulate

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results" / "alignment_model.json"
PAGE = REPOSITORY / "docs" / "reference" / "alignment-gain.md"
PICTURE = PAGE.with_suffix(".svg")


def compute(machines: tuple[Machine, ...]) -> dict[str, Any]:
    """All results, as the JSON file has them."""
    return {
        "what": "a model, not a measurement",
        "how": {
            "seed": SEED,
            "replicas": REPLICAS,
            "jobs": JOBS,
            "load": LOAD,
            "sizes": {str(size): share for size, share in SIZES.items()},
        },
        "checks": [
            as_json(check(experiment, chance))
            for chance in (ONE_IN_EIGHT, BOTH_ENDS)
            for experiment in EXPERIMENTS
        ],
        "machines": {machine.name: of_machine(machine) for machine in machines},
    }


def of_machine(machine: Machine) -> dict[str, Any]:
    """One machine under every policy."""
    print(f"computing: {machine.title} ...", file=sys.stderr, flush=True)
    return {
        "title": machine.title,
        "gpus": len(machine.gpus),
        "nics": len(machine.nics),
        "near": machine.near.name,
        "bandwidth": {
            "near": machine.bandwidth.near,
            "far": round(machine.bandwidth.far, 4),
            "source": machine.bandwidth.source,
            "url": machine.bandwidth.url,
            "of_this_machine": machine.bandwidth.of_this_machine,
        },
        **{str(policy): simulate(machine, policy) for policy in Policy},
    }


def as_json(found: Check) -> dict[str, Any]:
    return {
        "experiment": found.experiment.name,
        "chance": str(found.chance),
        "aligned": found.experiment.aligned,
        "unaligned": found.experiment.unaligned,
        "published_sd": found.experiment.unaligned_sd,
        "far": round(found.far, 4),
        "sd": round(found.sd, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "agrees": found.agrees,
    }


def main() -> int:
    results = compute(read_machines())
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(write_page(results), encoding="utf-8")
    PICTURE.write_text(draw(results), encoding="utf-8")
    for path in (RESULTS, PAGE, PICTURE):
        print(f"written: {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
