"""Machines of ``tests/data`` as nodes of one cluster, and what ``claim new`` is asked for on each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from dranet.cluster.slice_plan import Feature, withhold
from dranet.desk.kubeapi.objects import MAX_RESULTS
from dranet.desk.templates.request import ClaimRequest
from tests.data.layouts import LAYOUTS
from tests.desk.scheduler.cases import EVERYTHING, NAMESPACE, Json
from tests.desk.templates.layout_clusters import Gpus, World, world

ASKS = (
    *(ClaimRequest(number, number) for number in (1, 2, 3, 4, 8)),
    ClaimRequest(1, 2),
    ClaimRequest(2, 1),
    ClaimRequest(2, 4),
    ClaimRequest(0, 1),
    ClaimRequest(0, 2),
    ClaimRequest(1, 1, rdma=False),
    ClaimRequest(0, 1, rdma=False),
    ClaimRequest(1, 1, per_node=True),
    ClaimRequest(0, 1, per_node=True),
    ClaimRequest(1, 1, per_node=True, rails=True),
    ClaimRequest(2, 2, rails=True),
    ClaimRequest(8, 8, rails=True),
    ClaimRequest(0, 2, rails=True),
    ClaimRequest(1, MAX_RESULTS - 1),
    ClaimRequest(MAX_RESULTS - 1, 1),
)
"""Every form of the command; no layout has what the last two ask for."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node with the hardware of a layout, for one ask."""

    layout: str
    gpus: Gpus
    ask: ClaimRequest
    node: str
    has_lists: bool = False
    """The server keeps list attributes, and the driver publishes them."""
    is_nearest: bool = False
    """It is asked for what a refusal has named."""

    @property
    def title(self) -> str:
        ask = self.ask
        words = [f"--gpus {ask.gpus} --nics {ask.nics}"]
        words += [flag for flag, on in (("--per-node", ask.per_node), ("--rails", ask.rails)) if on]
        words += ["--no-rdma"] * (ask.rdma is False)
        return f"{self.layout}, GPUs {self.gpus}: {' '.join(words)}"

    @property
    def world(self) -> World:
        return world(self.layout, self.gpus, self.node, self.has_lists)

    def for_ask(self, ask: ClaimRequest) -> Machine:
        """Another node of the same hardware."""
        return replace(self, ask=ask, node=f"{self.node}-nearest", is_nearest=True)

    def build_slices(self) -> Iterator[Json]:
        """As a driver publishes them on a server whose other optional fields are off."""
        off = frozenset(Feature) - ({Feature.LIST_ATTRIBUTES} if self.has_lists else set())
        for entry in self.world.slices:
            spec = entry["spec"]
            devices = withhold(tuple(spec["devices"]), off)
            yield {**entry, "spec": {**spec, "devices": list(devices)}}


def list_machines(
    publishers: Collection[Gpus] = tuple(Gpus),
    asks: Sequence[ClaimRequest] = ASKS,
    *,
    has_lists: bool = False,
) -> list[Machine]:
    """Each layout for each ask, with the GPUs of each publisher where the layout has GPUs."""
    kinds = [
        (layout, gpus) for layout in LAYOUTS for gpus in publishers if gpus is Gpus.OURS or world(layout).gpus
    ]
    return [
        Machine(layout, gpus, ask, f"m{number}", has_lists)
        for number, ((layout, gpus), ask) in enumerate(product(kinds, asks))
    ]


def build_node(name: str) -> Json:
    room = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"machine": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def write_plain(machine: Machine, nic_class: str, gpu_class: str) -> tuple[Json, ...]:
    """What the ask comes to without any alignment: two counts."""
    wanted = ((nic_class, machine.ask.nics), (gpu_class, machine.ask.gpus))
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": name, "count": count}}
        for number, (name, count) in enumerate(wanted)
        if count
    ]
    template = {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "plain"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "all"}]}}
    entry = {"name": "all", "resourceClaimTemplateName": "plain"}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], "resourceClaims": [entry]}}
    return template, pod


def instantiate(manifests: Sequence[Json], name: str, node: str, kind: int = 0) -> tuple[list[Json], Json]:
    """The claims and a pod of manifests, as Kubernetes makes them from the templates, for one node. ``kind``
    is its number among the pods of the manifests."""
    pod = [item for item in manifests if item["kind"] == "Pod"][kind]
    templates = {
        item["metadata"]["name"]: item["spec"]["spec"]
        for item in manifests
        if item["kind"] == "ResourceClaimTemplate"
    }
    names = {
        entry["name"]: (f"{name}-{entry['name']}", templates[entry["resourceClaimTemplateName"]])
        for entry in pod["spec"]["resourceClaims"]
    }
    claims = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim, "namespace": NAMESPACE},
            "spec": spec,
        }
        for claim, spec in names.values()
    ]
    entries = [{"name": entry, "resourceClaimName": claim} for entry, (claim, _) in names.items()]
    where = {"nodeSelector": {"machine": node}, "tolerations": [EVERYTHING]}
    spec = {**pod["spec"], **where, "resourceClaims": entries}
    return claims, {**pod, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
