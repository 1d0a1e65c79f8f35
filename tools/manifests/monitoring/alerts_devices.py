"""Alerts about the node's devices, and about what pods have of them."""

from __future__ import annotations

from tools.manifests.monitoring import commands as c
from tools.manifests.monitoring.recordings import CLUSTER, DEVICE, NODE, RDMA_BAD, rate_of_ports
from tools.manifests.monitoring.rule import Alert, Severity

_DEAD = 'dranet_device_fault{fault=~"link-down|rdma-port-down"}'
_CAME = (
    f"({_DEAD} == 1) unless on ({DEVICE}) ({_DEAD} offset 6h == 1) "
    f"and on ({CLUSTER}, instance) (dranet_build_info offset 6h)"
)
"""Lately, on a node that was there before: ports without a cable are on many nodes, and on new ones."""
_WORN = 'dranet_device_fault{fault=~"link-flapping|link-errors|pcie-degraded"}'
_WORSE = "dranet_pod_device_worse_than_possible"

DEVICE_ALERTS = (
    Alert(
        "DranetLinksDownOnManyNodes",
        Severity.CRITICAL,
        "5m",
        f"(count by ({CLUSTER}) (count by ({NODE}) ({_CAME})) >= 3) "
        f"> 0.1 * count by ({CLUSTER}) (dranet_build_info)",
        "NICs carry nothing on {{ $value }} nodes",
        "On more than a tenth of the nodes, and on three at least, a NIC has lost its carrier, or its RDMA "
        "port went down, within six hours. So many at once is a switch, a subnet manager or a setting of the "
        "fabric.",
        "kubectl get events -A --field-selector reason=NetworkDeviceUnhealthy",
        "See what the NICs have in common: rail, rack, switch.",
        ("health.md#what-to-do",),
    ),
    Alert(
        "DranetPodNicDown",
        Severity.WARNING,
        "2m",
        f"dranet_pod_device_info * on ({DEVICE}) group_left () (max by ({DEVICE}) ({_DEAD}) == 1)",
        "The NIC {{ $labels.device }} of {{ $labels.namespace }}/{{ $labels.pod }} carries nothing",
        "The link has no carrier, or the RDMA port is down. The pod runs and what it does with that NIC "
        "stands still, and with it all other pods of the same job.",
        c.DESCRIBE_POD,
        "Cable, transceiver, switch port. End the pod if its job is to go on elsewhere: no new claim gets "
        "the NIC while it is down.",
        ("health.md#what-to-do",),
    ),
    Alert(
        "DranetNicDown",
        Severity.WARNING,
        "30m",
        f"({_DEAD} == 1) unless on ({DEVICE}) dranet_pod_device_info",
        "The NIC {{ $labels.device }} of {{ $labels.node }} carries nothing ({{ $labels.fault }})",
        "No pod has it, and no new claim gets it (`health_taints`). With `device_metrics: devices` it says "
        "nothing of pods.",
        c.DEVICES,
        "Plug, replace, or set the interface down on the node: what is switched off has no fault. What your "
        "nodes always show goes into `health_ignore`.",
        ("health.md#what-to-do", "health.md#how-to-try-it-out"),
    ),
    Alert(
        "DranetNicDegraded",
        Severity.WARNING,
        "15m",
        f"{_WORN} == 1",
        "The NIC {{ $labels.device }} of {{ $labels.node }} works badly ({{ $labels.fault }})",
        "It flaps, counts errors, or has fewer PCIe lanes or a lower speed than card and slot can. Pods "
        "still get it, and are slower than they should be.",
        c.DEVICES,
        "By fault. What your nodes always show goes into `health_ignore`.",
        ("health.md#what-to-do",),
    ),
    Alert(
        "DranetRdmaRetransmits",
        Severity.WARNING,
        "15m",
        f"node_device:dranet_rdma_retransmits:ratio_rate5m > 0.001 "
        f"and {rate_of_ports('dranet_rdma_retransmits')} > 1",
        "RDMA of {{ $labels.device }} on {{ $labels.node }} retransmits {{ $value | humanizePercentage }}",
        "The fabric loses packets: collectives wait for the slowest. Flow control or congestion control is "
        "not set alike everywhere, or a link has errors.",
        c.DOCTOR,
        "Compare PFC and ECN of the rails (`dranet doctor`, `pfc-differs`), and look at discards of the "
        "switch port and at `dranet_rdma_out_of_buffer_total`.",
        ("doctor-checks.md", "metrics.md#what-to-ask"),
    ),
    Alert(
        "DranetRdmaErrors",
        Severity.WARNING,
        "15m",
        f"node_device:dranet_rdma_errors:ratio_rate5m > 0.001 and {RDMA_BAD} > 1",
        "RDMA of {{ $labels.device }} on {{ $labels.node }} gets {{ $value | humanizePercentage }} bad "
        "packets",
        "They have an error, or are discarded at the port.",
        c.DOCTOR,
        "Errors: clean or replace cable and transceiver at both ends. Discards: the receiver is congested.",
        ("health.md#what-to-do",),
    ),
    Alert(
        "DranetRdmaConnectionsBreak",
        Severity.INFO,
        "15m",
        f"sum by ({NODE}, device) (increase(dranet_rdma_retries_exceeded_total[15m])) > 10",
        "RDMA connections of {{ $labels.device }} on {{ $labels.node }} break",
        "Retries were used up more than ten times within a quarter of an hour. Some of it is usual where "
        "jobs are killed: what is left of them tries in vain.",
        c.DEVICES,
        "No job was killed: the other side or the way to it is gone. Look for links that are down.",
        ("metrics.md#rdma-ports",),
    ),
    Alert(
        "DranetPodMisaligned",
        Severity.INFO,
        "10m",
        f"({_WORSE} == 1) or (dranet_alignment_devices_worse_than_possible > 0 "
        f"unless on ({CLUSTER}, instance) {_WORSE})",
        "A pod on {{ $labels.node }} has a NIC farther from its GPU than it had to be "
        "({{ $labels.namespace }}/{{ $labels.pod }})",
        "The node had a nearer one. The pod runs, and sends and receives more slowly than it could. Pod and "
        "namespace are empty where `device_metrics` leaves them out.",
        "kubectl get events -A --field-selector reason=MisalignedTopology",
        "The Event names the nearer one and who holds it. `dranet claim new` writes a claim that gets it.",
        ("alignment.md#when-it-is-false", "claim-new.md"),
    ),
    Alert(
        "DranetGpusUnknown",
        Severity.WARNING,
        "1h",
        'dranet_inventory_gpus{state="unknown"} > 0',
        "dranet on {{ $labels.node }} does not know whose {{ $value }} GPUs are",
        "It waits for a DRA driver or a device plugin that may serve them, and offers them to nobody.",
        c.DOCTOR,
        "See why the other driver does not come up, or say whose they are by `gpus` in the settings.",
        ("gpus.md#how-auto-decides",),
    ),
    Alert(
        "DranetAttributesFileBad",
        Severity.WARNING,
        "5m",
        "dranet_inventory_attributes_file_ok == 0",
        "The file of your attributes is bad on {{ $labels.node }}",
        "The last good one counts until the driver is started anew; then there is none.",
        c.LOGS,
        "The log names line and mistake.",
        ("inventory.md#attributes-of-your-own",),
    ),
    Alert(
        "DranetFilterFails",
        Severity.WARNING,
        "15m",
        "dranet_inventory_filter_failed_devices > 0",
        "The filter fails on {{ $value }} devices of {{ $labels.node }}",
        "They are held back: no claim gets them.",
        c.DEVICES,
        "The list has the filter's words; mostly an attribute that not each device has: "
        "`.?name.orValue(...)`.",
        ("inventory.md#the-filter",),
    ),
)
