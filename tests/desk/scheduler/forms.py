"""Forms of a claim that keep a NIC and a vendor's GPU together: which of them real schedulers understand.

For each form a node with four GPUs and four NICs on two NUMA nodes, as on a GB200 tray: without a constraint
the scheduler comes to the NICs of the other NUMA node first. Four pods claim a GPU and a NIC each.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.desk.templates import selectors
from dranet.desk.templates.relations import Group, Relation
from dranet.desk.templates.shapes import RequestDefaults, paired
from dranet.errors import ClusterError, Reason
from e2e.access import LaneUnavailable
from e2e.cluster import build
from e2e.cluster.controlplane import ControlPlaneKit, find_kit
from testbed.debian.packages import Unavailable
from testbed.isolation import WORK_DIR, IsolationRefused, run_isolated
from tests.data.gpu_drivers import build_slice
from tests.desk.scheduler.cases import Json
from tests.desk.scheduler.filling import Filling, fill
from tests.desk.scheduler.layouts import build_node
from tests.desk.scheduler.settings import SETTINGS, Setting, open_scheduler
from tests.desk.scheduler.submission import prepare

CANNOT_RUN_HERE = 3
_GPU, _NIC = "gpu.nvidia.com", "dra.net"
_ADDRESS, _ROOT, _NUMA = (f"resource.kubernetes.io/{word}" for word in ("pciBusID", "pcieRoot", "numaNode"))
_DERIVED = "derived/place"
_NUMBERS = range(4)


def _numa_of_gpu(number: int) -> int:
    return number // 2


def _numa_of_nic(number: int) -> int:
    return 1 - number // 2


def _gpu_address(number: int) -> str:
    return f"{number:04x}:01:00.0"


def _near(nic: int) -> list[int]:
    """The GPUs on its NUMA node."""
    return [gpu for gpu in _NUMBERS if _numa_of_gpu(gpu) == _numa_of_nic(nic)]


def _root(gpu: int) -> str:
    return f"pci{gpu:04x}:00"


def _match(attribute: str, *requests: str) -> Json:
    return {"matchAttribute": attribute, "requests": list(requests or ("nic", "gpu"))}


def _request(name: str, expression: str = "", **more: object) -> Json:
    driver = _NIC if name.startswith("nic") else _GPU
    chosen = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"name": name, "exactly": {"deviceClassName": driver, **chosen, **more}}


def _derive(name: str, expression: str) -> Json:
    return _request(name, derivedAttributes=[{"name": _DERIVED, "expression": expression}])


def _value_of(domain: str, name: str) -> str:
    return f'device.attributes["{domain}"].{name}'


_PAIR = (_request("nic"), _request("gpu"))
_GROUPS = tuple(
    Group(
        f"numa-{numa}",
        selectors.numa_node_is(numa),
        selectors.address_is_one_of([_gpu_address(g) for g in _NUMBERS if _numa_of_gpu(g) == numa], _ADDRESS),
    )
    for numa in (0, 1)
)
_BY_GROUPS = paired(
    RequestDefaults(_NIC, _GPU, never_equal=_ADDRESS),
    *(1, 1, (Relation("same-numa", "on the same NUMA node", groups=_GROUPS),)),
    in_bundles=False,
)
_NAMED = _value_of(_NIC, "numaNodeGpus")


@dataclass(frozen=True, slots=True)
class Form:
    """A claim, and what the devices publish besides their address."""

    title: str
    requests: Sequence[Json] = _PAIR
    constraints: Sequence[Json] = ()
    nic_lists: bool = False
    """NICs publish roots and NUMA nodes as lists: their own first, then those of the GPUs on their node."""
    shares_root: bool = False
    """Each NIC is below the root of a GPU."""

    @property
    def manifests(self) -> Sequence[Json]:
        devices = {"requests": list(self.requests), "constraints": list(self.constraints)}
        template = {
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "pair"},
            "spec": {"spec": {"devices": devices}},
        }
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "pair"}]}}
        entry = {"name": "pair", "resourceClaimTemplateName": "pair"}
        spec = {"containers": [container], "resourceClaims": [entry]}
        return template, {"apiVersion": "v1", "kind": "Pod", "spec": spec}

    def build_gpu(self, number: int) -> Json:
        attributes = {
            "type": {"string": "gpu"},
            _ADDRESS: {"string": _gpu_address(number)},
            _ROOT: {"string": _root(number)},
            _NUMA: {"int": _numa_of_gpu(number)},
        }
        return {"name": f"gpu-{number}", "attributes": attributes}

    def build_nic(self, number: int) -> Json:
        near = _near(number)
        own = _root(near[number % 2]) if self.shares_root else f"pci01{number:02x}:00"
        roots, numa = [own, *map(_root, near)], _numa_of_nic(number)
        attributes = {
            _ADDRESS: {"string": f"01{number:02x}:03:00.0"},
            _ROOT: {"strings": roots} if self.nic_lists else {"string": own},
            _NUMA: {"ints": [numa]} if self.nic_lists else {"int": numa},
            "numaNode": {"int": numa},
            "numaNodeGpus": {"string": ",".join(map(_gpu_address, near))},
        }
        return {"name": f"nic-{number}", "attributes": attributes}


FORMS = (
    Form("no constraint"),
    Form("match pcieRoot, NIC and GPU below one root", constraints=[_match(_ROOT)], shares_root=True),
    Form("match pcieRoot, each below its own root", constraints=[_match(_ROOT)]),
    Form("match pcieRoot, NICs with lists", constraints=[_match(_ROOT)], nic_lists=True),
    Form("match pcieRoot, NICs with lists, GPU first", _PAIR[::-1], [_match(_ROOT)], nic_lists=True),
    Form("match numaNode", constraints=[_match(_NUMA)]),
    Form("match numaNode, NICs with lists", constraints=[_match(_NUMA)], nic_lists=True),
    Form("groups of alternatives, kept apart by pciBusID", _BY_GROUPS.requests, _BY_GROUPS.constraints),
    Form(
        "match a derived attribute: NUMA node of the NIC, address of the GPU by a table",
        (
            _derive("nic", _value_of(_NIC, "numaNode")),
            _derive("gpu", f"{_GROUPS[0].gpu_selector} ? 0 : 1"),
        ),
        [_match(_DERIVED)],
    ),
    Form(
        "match a derived list: the GPUs that the NIC names, the address of the GPU",
        (
            _derive("nic", f'has({_NAMED}) ? {_NAMED}.split(",") : [""]'),
            _derive("gpu", _value_of("resource.kubernetes.io", "pciBusID")),
        ),
        [_match(_DERIVED)],
    ),
)

WITH_DERIVED = Setting(
    "1.37",
    "with derived attributes",
    {"DRAListTypeAttributes": True, "DRADerivedAttributes": True},
)


@dataclass
class Outcome:
    """What the scheduler made of a form."""

    pods: int = 0
    aligned: int = 0
    refusal: str = ""
    """Of the API server, which does not take it."""

    def __str__(self) -> str:
        if self.refusal:
            return "refused"
        return f"{self.aligned} of {self.pods} near" if self.pods else "no pod"


def main(arguments: Sequence[str] | None = None) -> int:
    versions = sorted({setting.version for setting in SETTINGS})
    parser = argparse.ArgumentParser(prog="python -m tests.desk.scheduler.forms", description=__doc__)
    parser.add_argument("--versions", nargs="+", choices=versions, default=versions)
    options = parser.parse_args(arguments)
    named = [s for s in SETTINGS if s.name in ("defaults", "with list attributes")]
    settings = [s for s in (*named, WITH_DERIVED) if s.version in options.versions]
    try:
        kits = {version: find_kit(build.print_progress, version) for version in options.versions}
        return run_isolated(lambda: asyncio.run(_run(kits, settings)))
    except (LaneUnavailable, Unavailable, IsolationRefused) as missing:
        sys.stdout.write(f"skipped: {missing}\n")
        return CANNOT_RUN_HERE


async def _run(kits: Mapping[str, ControlPlaneKit], settings: Sequence[Setting]) -> int:
    """In the private tree."""
    columns = [await try_forms(kits[setting.version], setting, Path(WORK_DIR)) for setting in settings]
    header = ("form", *(f"{setting.version} {setting.name}" for setting in settings))
    rows = [(form.title, *map(str, outcomes)) for form, *outcomes in zip(FORMS, *columns, strict=True)]
    lines = [header, ["---"] * len(header), *rows]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))
    sys.stdout.flush()
    return 0


async def try_forms(kit: ControlPlaneKit, setting: Setting, folder: Path) -> list[Outcome]:
    """Give each form to the scheduler of one setting; inside a private tree only."""
    async with open_scheduler(kit, setting, folder / f"{setting.slug}-forms") as api:
        await prepare(api)
        classes = [await api.create(paths.DEVICE_CLASSES, _build_class(name)) for name in (_NIC, _GPU)]
        begun = [await _begin(api, form, f"form-{number}") for number, form in enumerate(FORMS)]
        await fill(api, [one for one in begun if isinstance(one, Filling)], classes)
    return [_judge(one) if isinstance(one, Filling) else one for one in begun]


def _build_class(driver: str) -> Json:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}


async def _begin(api: ApiClient, form: Form, node: str) -> Filling | Outcome:
    nodes = [await api.create(paths.NODES, build_node(node))]
    wanted = [
        build_slice(_NIC, node, list(map(form.build_nic, _NUMBERS))),
        build_slice(_GPU, node, list(map(form.build_gpu, _NUMBERS))),
    ]
    try:
        slices = [await api.create(paths.RESOURCE_SLICES, body) for body in wanted]
    except ClusterError as error:
        if error.reason is not Reason.API_INVALID:
            raise
        return Outcome(refusal=error.message)
    return Filling(form.title, nodes, slices, form.manifests)


def _judge(filling: Filling) -> Outcome:
    """A pod whose devices are all on one NUMA node is aligned."""
    pods = list(filling.pods)
    return Outcome(len(pods), sum(len({_numa_of(name) for name in pod}) == 1 for pod in pods))


def _numa_of(name: str) -> int:
    word, _, number = name.partition("-")
    return _numa_of_gpu(int(number)) if word == "gpu" else _numa_of_nic(int(number))


if __name__ == "__main__":
    sys.exit(main())
