"""``docs/user/metrics.md``: tables of what is declared, and what to ask of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dranet.telemetry import Metrics
from dranet.telemetry.devices import COMMON_LABELS
from dranet.telemetry.recorder import Declared, Group

HEAD = """# Metrics

Generated from what the code declares (`make docs`); a test fails when it is stale.

`/metrics` on port 9177 (`--bind-address`), in Prometheus' text form. Three kinds of series:

| series | labels | how many |
|---|---|---|
| `dranet_device_*`, `dranet_rdma_*` | the device | as many as the node has hardware, whoever has it |
| `dranet_pod_*` | pod, claim and device | those that are on the node now; they end with the pod |
| all others | words from closed lists | fixed |

`--device-metrics` says how much of it there is: `pods` (all, the default), `devices` (without
`dranet_pod_*`) or `off`. Scrape with `honorLabels: true`, as for kube-state-metrics: else Prometheus renames
the labels `namespace` and `pod` to `exported_namespace` and `exported_pod`, because the driver's own pod has
them as well.

Counters are those of the kernel. They go on while a device moves from pod to pod, and begin anew when its
driver is loaded. What cannot be read is absent, and never 0. While two instances [overlap](updates.md) the
port is one instance's, so the driver's own counters begin anew after an update.

Who may read it is a matter of [settings](node-page.md#authentication). By default that is whoever reaches the
port, and the names of pods and claims are in it.

## What is worth an alert

[alerts.md](alerts.md) has them all, with what to do; the chart and plain Prometheus take them as one file.
[monitoring.md](monitoring.md) says how to switch it on, and what to watch first.

## What to ask

With [several clusters](monitoring.md#several-clusters-in-one-prometheus) in one Prometheus add `cluster` to
each `by` and `on`.

What each pod sends by its claimed links, and by RDMA, which the links of most cards do not count:

```promql
sum by (namespace, pod) (rate(dranet_pod_network_transmit_bytes_total[5m]))
```

```promql
sum by (namespace, pod) (rate(dranet_pod_rdma_transmit_bytes_total[5m]))
```

Pods whose NIC is farther from its GPU than it had to be, and the worst distance in each claim (1 is `PIX`, 5
`SYS`):

```promql
count by (namespace, pod) (dranet_pod_device_worse_than_possible == 1)
```

```promql
max by (namespace, claim) (dranet_pod_device_alignment_level)
```

Anything of a device, for the pod that has it now; here retransmissions of RDMA. In the first minutes of a
pod the rate is in part its predecessor's, which is why traffic has series of its own:

```promql
sum by (namespace, pod) (
  rate(dranet_rdma_retransmits_total[5m])
  * on (instance, device) group_left (namespace, pod) dranet_pod_device_info{shared="false"}
)
```

How busy each NIC is, and which ones run below what they can:

```promql
rate(dranet_device_transmit_bytes_total[5m]) / dranet_device_speed_bytes_per_second
```

```promql
dranet_device_pcie_lanes < dranet_device_pcie_max_lanes
```

Congestion: how often NICs were told to slow down, and asked to wait:

```promql
sum by (instance, device) (rate(dranet_rdma_receive_cnp_total[5m]))
```

```promql
sum by (instance, device, priority) (rate(dranet_device_receive_pause_frames_total[5m]))
```

Where the time of a pod's start goes:

```promql
histogram_quantile(0.99, sum by (le, step) (rate(dranet_attach_step_seconds_bucket[1h])))
```
"""

FOOT = """
## How many series

| of | series |
|---|---|
| the driver itself | some 280 at the start, 1,200 when all has happened once |
| each network device | up to {devices}, and 2 for each priority with flow control |
| each RDMA port | up to {ports}, as many as its driver counts |
| each device of a pod | up to {pods} |

So a node with eight RDMA NICs that are all in pods has some {node} series of devices, and {churn} of them
are new with each generation of pods. Nothing of a pod is kept when it has ended, neither here nor in the
driver's memory.

## What a scrape costs

Nothing is read between two scrapes. Blocking reads have a thread of their own; the answer comes within two
seconds even where the kernel hangs, without what could not be read (`dranet_scrape_unread_pods`). A pod, or
an RDMA device, for which the kernel does not answer is left out from then on until it does
(`dranet_scrape_stuck_reads`, and the log names it), and costs no series but its own. What was read answers
others for one second, so a pair of Prometheus servers costs little more than one. A scrape of
100 claims with eight NICs each, 23,300 samples and 2 MB, takes some 30 ms of processor time, a third of it
in the kernel (`python -m benchmarks scrape`).

## Coming from DraNet

The `dranet_driver_*` metrics have DraNet's names, labels and meanings, so its dashboards keep working. One
of them, `dranet_driver_published_devices_total`, is a gauge in spite of its name.
`dranet_driver_last_published_time_seconds` tells when the API server took a slice, where DraNet tells when
it was queued.

`process_*` and `python_info` (memory, processor time, open files) are those of Prometheus' Python client.
"""

INTRODUCTIONS: Mapping[Group, str] = {
    Group.DEVICES: "Of each network device on offer, on the node or in a pod; counted by the kernel since "
    "its driver was loaded.\n\n",
    Group.RDMA: "Of each port of their RDMA devices; as many as the driver counts. Counters of errors that "
    "come from the InfiniBand specification are narrow and stop at their greatest value until they are "
    "cleared: `link_error_recoveries` and `link_downed` at 255, `symbol_errors`, `receive_errors` and "
    "`transmit_discards` at 65,535.\n\n",
    Group.PODS: "Of each device that a pod has now. The counters are the kernel's and go on from what others "
    "did with the device, so they do not begin at 0: ask for `rate()` or `increase()`, which begin with the "
    "first scrape of the pod. Except for shared devices the same bytes are in `dranet_device_*` and "
    "`dranet_rdma_*`, so do not add these to those. A device that was just attached may be left out by one "
    "scrape, and a pod that has ended before its second scrape has no rate: what it sent is in the series of "
    "the device.\n\n",
}


def list_declared() -> Sequence[Declared]:
    """Every metric that ``/metrics`` may show, but those of the Python process."""
    return Metrics().declared


def metrics_page() -> str:
    declared = list_declared()
    tables = "".join(_write_table(group, [one for one in declared if one.group is group]) for group in Group)
    return HEAD + tables + _write_foot(declared)


def _write_table(group: Group, declared: Sequence[Declared]) -> str:
    common = COMMON_LABELS.get(group, {})
    legend = "".join(f"- `{name}`: {meaning}\n" for name, meaning in common.items())
    head = f"\n## {group}\n\n{INTRODUCTIONS.get(group, '')}{legend}{chr(10) if legend else ''}"
    rows = (
        f"| `{one.name}` | {one.kind} | {_describe_labels(one, common)} | {one.text} |\n" for one in declared
    )
    return f"{head}| metric | type | labels | meaning |\n|---|---|---|---|\n{''.join(rows)}"


def _describe_labels(one: Declared, common: Mapping[str, str]) -> str:
    """Those that the group has in common are explained above."""
    return "; ".join(
        f"`{name}`" if common.get(name) == meaning else f"`{name}`: {meaning}"
        for name, meaning in one.labels.items()
    )


def _write_foot(declared: Sequence[Declared]) -> str:
    counts = {group: _count(declared, group) for group in (Group.DEVICES, Group.RDMA, Group.PODS)}
    devices, ports, pods = counts.values()
    return FOOT.format(
        devices=devices, ports=ports, pods=pods, node=f"{8 * (devices + ports + pods):,}", churn=8 * pods
    )


def _count(declared: Sequence[Declared], group: Group) -> int:
    """Series of one subject at its best: without faults, and without what has a label of its own."""
    mine = [one for one in declared if one.group is group]
    return sum(not {"fault", "priority"} & one.labels.keys() for one in mine)
