"""Published bandwidths, and the one number that is fitted to them.

The experiment (A. Ojea, arXiv 2506.23628): two nodes of 8 B200, a pod of a GPU and a NIC on each, 100 runs,
once aligned and once with the GPU that the device plugin happened to choose. In the model a run goes at
``near`` or ``far`` speed, aligned with the chance of 1 in 8 that the paper gives. ``near`` is the mean of the
aligned runs, ``far`` is what makes the mean of the others come out. Nothing is left to fit: the *spread* of
the others, which the paper gives too, shows whether the model is any good.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from fractions import Fraction

RUNS = 100
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Experiment:
    """One row of the paper's table, GB/s of NCCL's bus bandwidth: mean and standard deviation."""

    name: str
    aligned: float
    aligned_sd: float
    unaligned: float
    unaligned_sd: float


EXPERIMENTS = (
    Experiment("all-gather, 8 GB", 46.59, 0.03, 29.20, 5.62),
    Experiment("all-reduce, 8 GB", 46.93, 0.04, 29.68, 6.74),
    Experiment("all-gather, 1 MB", 11.42, 0.19, 8.98, 0.95),
    Experiment("all-reduce, 1 MB", 14.11, 0.13, 10.39, 2.60),
    Experiment("all-gather, 64 KB", 1.29, 0.02, 1.16, 0.06),
    Experiment("all-reduce, 64 KB", 1.53, 0.03, 1.21, 0.11),
)

ONE_IN_EIGHT = Fraction(1, 8)
"""As in the paper: one choice decides."""
BOTH_ENDS = Fraction(1, 64)
"""The rival: both pods choose by themselves, and the run is as slow as the slower end."""


@dataclass(frozen=True, slots=True)
class Check:
    """The model's result for one experiment, with ``chance`` of being aligned."""

    experiment: Experiment
    chance: Fraction
    far: float
    """Fitted to the mean."""
    sd: float
    """Predicted."""
    low: float
    high: float
    """Where the standard deviation of 100 such runs is in 95 of 100 repetitions."""

    @property
    def agrees(self) -> bool:
        """The published standard deviation is one that this model gives."""
        return self.low <= self.experiment.unaligned_sd <= self.high


def fit_far(experiment: Experiment, chance: Fraction = ONE_IN_EIGHT) -> float:
    """The bandwidth of a run that is not aligned: mean = chance * near + (1 - chance) * far."""
    aligned = float(chance)
    return (experiment.unaligned - aligned * experiment.aligned) / (1 - aligned)


def check(experiment: Experiment, chance: Fraction = ONE_IN_EIGHT, seed: int = 1) -> Check:
    """Hold the predicted spread against the published one. Runs of a kind spread as the aligned ones do."""
    far = fit_far(experiment, chance)
    noise = experiment.aligned_sd
    aligned = float(chance)
    spread = math.sqrt(aligned * (1 - aligned) * (experiment.aligned - far) ** 2 + noise**2)
    draw = random.Random(f"{seed} {experiment.name} {chance}")
    repeated = sorted(_draw_sd(draw, experiment, far, aligned) for _ in range(DRAWS))
    low, high = repeated[int(DRAWS * 0.025)], repeated[int(DRAWS * 0.975)]
    return Check(experiment, chance, far, spread, low, high)


def _draw_sd(draw: random.Random, experiment: Experiment, far: float, aligned: float) -> float:
    """The standard deviation of one repetition of the experiment."""
    levels = (experiment.aligned if draw.random() < aligned else far for _ in range(RUNS))
    return statistics.stdev(draw.gauss(level, experiment.aligned_sd) for level in levels)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """GB/s of a job whose NICs are near, or of which one at least is far: what was run, and the source."""

    near: float
    far: float
    source: str
    url: str
    of_this_machine: bool = True
    """Otherwise only the ratio means something."""


PAPER = "https://arxiv.org/abs/2506.23628"
_DRANET = "https://github.com/kubernetes-sigs/dranet/blob/main"
_ON_AWS = f"{_DRANET}/site/content/docs/user/aws-eks-efa.md"
_ON_AZURE = f"{_DRANET}/site/content/docs/user/azure-aks.md"
_ON_OCI = f"{_DRANET}/examples/oke-bm-gpu-gb200-rocev2-dranet/README.md"

B200 = Bandwidth(
    EXPERIMENTS[0].aligned,
    fit_far(EXPERIMENTS[0]),
    "B200, 1 GPU, all-gather of 8 GB: aligned 46.59, fitted to the mean of the unaligned runs",
    PAPER,
)
_LIKE_B200 = Bandwidth(B200.near, B200.far, "none published; the ratio of B200", PAPER, of_this_machine=False)

BANDWIDTHS = {
    "aws-p5": Bandwidth(11.35, 6.04, "p4d, 1 GPU with 1 EFA: 11.35 and 6.04", _ON_AWS, of_this_machine=False),
    "azure-gb300": Bandwidth(56.0, 25.0, "GB300, 1 GPU, all-reduce: 56 and 25", _ON_AZURE),
    "azure-nd-h100-v5": _LIKE_B200,
    "dgx-a100": _LIKE_B200,
    "dgx-h100": _LIKE_B200,
    "gb200-nvl72": Bandwidth(
        46.0, 25.0, "GB200, 1 GPU, all-reduce: 46 and 25", _ON_OCI, of_this_machine=False
    ),
    "hgx-b200": B200,
    "infiniband-only": _LIKE_B200,
    "mi300x": Bandwidth(
        42.53, 6.10, "MI300X, 4 GPUs, all-reduce: same NUMA node 42.53, across 6.10", _ON_AZURE
    ),
    "oci-gb200": Bandwidth(46.0, 25.0, "GB200, 1 GPU, all-reduce: 46 and 25", _ON_OCI),
}
