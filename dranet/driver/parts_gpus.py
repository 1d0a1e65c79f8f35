"""Who serves the node's GPUs: the parts that ask and remember, wired to the others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dranet.cluster.nodes import fetch_node
from dranet.driver.gpus.servers import GpuInquiry, GpuServers, OwnGpus
from dranet.kernel.boot import read_uptime
from dranet.kubelet.pod_resources import PodResources

if TYPE_CHECKING:
    from dranet.driver.parts import Parts


def build_gpu_inquiry(parts: Parts) -> GpuInquiry:
    """Asks the Node object and the kubelet's device plugins."""
    settings = parts.settings
    return GpuInquiry(
        partial(fetch_node, parts.client, settings.node_name),
        PodResources(settings.pod_resources_socket).read_givers,
        lambda: parts.gpus,
    )


def build_gpus(parts: Parts, *, is_live: bool) -> GpuServers:
    """Decides whether GPUs are ours to offer; remembers across a boot which were, unless they are of a
    capture."""
    settings = parts.settings
    own = OwnGpus(settings.state_dir / "gpus.json")
    return GpuServers(
        settings.publish_gpus,
        parts.node_devices,
        parts.metrics.inventory,
        is_answering=lambda: parts.publisher.is_listed,
        on_news=parts.look_again,
        on_gpus=lambda: parts.call_soon(parts.node_devices.want),
        ask=parts.gpu_inquiry.ask,
        read_uptime=partial(read_uptime, settings.procfs_root),
        own=own if is_live else None,
        return_seconds=settings.gpu_return_seconds,
    )
