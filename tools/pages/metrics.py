"""``docs/reference/metrics.md``: tables of the declared metrics, and examples of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dranet.telemetry import Metrics
from dranet.telemetry.node import COMMON_LABELS
from dranet.telemetry.recorder import Declared, Group
from tools.pages.page import fill, table

INTRODUCTIONS: Mapping[Group, str] = {
    Group.DEVICES: "One series for each network device that the driver offers, on the node or in a pod; the "
    "kernel counts since the device's driver was loaded.\n\n",
    Group.RDMA: "One series for each port of their RDMA devices, as far as the network driver counts. Error "
    "counters of the InfiniBand specification are narrow and stop at their maximum until they are cleared: "
    "`link_error_recoveries` and `link_downed` at 255, `symbol_errors`, `receive_errors` and "
    "`transmit_discards` at 65,535.\n\n",
    Group.PODS: "One series for each device that a pod has now. The counters are the kernel's and include "
    "earlier use of the device, so they do not start at 0: use `rate()` or `increase()`, starting with the "
    "first scrape of the pod. Except for shared devices the same bytes are in `dranet_device_*` and "
    "`dranet_rdma_*`, so do not add the two. A device that was just attached may be missing in one scrape, "
    "and a pod that has ended before its second scrape has no rate: what it sent is in the series of the "
    "device.\n\n",
}


def list_declared() -> Sequence[Declared]:
    """Return every metric that ``/metrics`` may show, except those of the Python process."""
    return Metrics().declared


def metrics_page() -> str:
    declared = list_declared()
    tables = "".join(_write_table(group, [one for one in declared if one.group is group]) for group in Group)
    devices, ports, pods = (_count(declared, group) for group in (Group.DEVICES, Group.RDMA, Group.PODS))
    node = f"{8 * (devices + ports + pods):,}"
    return fill(
        "metrics.md", tables=tables, devices=devices, ports=ports, pods=pods, node=node, churn=8 * pods
    )


def _write_table(group: Group, declared: Sequence[Declared]) -> str:
    common = COMMON_LABELS.get(group, {})
    legend = "".join(f"- `{name}`: {meaning}\n" for name, meaning in common.items())
    rows = ((f"`{one.name}`", str(one.kind), _describe_labels(one, common), one.text) for one in declared)
    lines = table(("metric", "type", "labels", "meaning"), rows)
    return f"\n## {group}\n\n{INTRODUCTIONS.get(group, '')}{legend}{chr(10) if legend else ''}{lines}"


def _describe_labels(one: Declared, common: Mapping[str, str]) -> str:
    """Explain the labels that the group does not have in common."""
    return "; ".join(
        f"`{name}`" if common.get(name) == meaning else f"`{name}`: {meaning}"
        for name, meaning in one.labels.items()
    )


def _count(declared: Sequence[Declared], group: Group) -> int:
    """Return the series of one subject without faults and without labels of its own."""
    mine = [one for one in declared if one.group is group]
    return sum(not {"fault", "priority"} & one.labels.keys() for one in mine)
