"""Versions of Kubernetes with their feature gates: each is a scheduler of its own.

The real scheduler has three allocators, and takes the oldest that knows every feature which is on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dranet.cluster.client import ApiClient
from e2e.cluster import config
from e2e.cluster.controlplane import ControlPlaneKit, open_control_plane
from tests.desk.scheduler.cases import Dialect

_UNHURRIED = ("--kube-api-qps=2000", "--kube-api-burst=4000")


@dataclass(frozen=True, slots=True)
class Setting:
    """One scheduler."""

    version: str
    """Minor: ``1.37``."""
    name: str
    gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: tuple[str, ...] = ()
    dialect: Dialect = field(default_factory=Dialect)
    is_newest: bool = True
    """Whether all that is written with the devices must be the same. Older schedulers record tolerations and
    configs in other ways."""
    is_ordered: bool = True
    """Whether the very devices must be the same. Without order the scheduler takes pools and slices as they
    come out of a map, so that other devices are right as well if they keep every rule."""

    @property
    def slug(self) -> str:
        return f"{self.version} {self.name}".replace(" ", "-")


_BEFORE_COUNTER_SLICES = Dialect(lists=False, counters_apart=False)

SETTINGS = (
    Setting("1.37", "defaults", dialect=Dialect(lists=False)),
    Setting("1.37", "with list attributes", {"DRAListTypeAttributes": True}),
    Setting("1.36", "defaults", dialect=Dialect(lists=False, counters_stay=False), is_newest=False),
    Setting(
        "1.36",
        "with list attributes",
        {"DRAListTypeAttributes": True},
        dialect=Dialect(counters_stay=False),
        is_newest=False,
    ),
    Setting("1.34", "defaults", dialect=_BEFORE_COUNTER_SLICES, is_newest=False, is_ordered=False),
    Setting(
        "1.34",
        "with taints and partitions",
        {"DRADeviceTaints": True, "DRAPartitionableDevices": True},
        ("resource.k8s.io/v1alpha3=true",),
        _BEFORE_COUNTER_SLICES,
        is_newest=False,
        is_ordered=False,
    ),
)
"""Without DRAConsumableCapacity on 1.34: see docs/dev/scheduler.md."""


@asynccontextmanager
async def open_scheduler(kit: ControlPlaneKit, setting: Setting, folder: Path) -> AsyncIterator[ApiClient]:
    """Boot an API server and a scheduler that is not held back by a limit of requests."""
    plan = config.Plan(folder / "kubernetes", setting.gates, runtime_config=setting.runtime_config)
    async with open_control_plane(kit, plan, folder / "logs", parts=()) as plane:
        flags = [*config.scheduler_flags(plan), *_UNHURRIED]
        await plane.programs.start(kit.kubernetes.paths["kube-scheduler"], flags)
        async with plane.connect() as api:
            yield api
