"""What a pod is told of an RDMA device that moved into its namespace, and what the host still shows of it.

The namespace mode is exclusive: the host's sysfs says nothing of a device that a pod has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranet.claims.report import RDMA_GIDS
from dranet.driver.hooks import ContainerServices, HookListeners, PodHooks
from dranet.driver.metadata import DeviceMetadata, MetadataFiles
from dranet.driver.reports.announcer import Announcer
from dranet.errors import DranetError
from dranet.inventory.policy import DEFAULT_POLICY
from dranet.kernel.counters import find_counter_folders
from dranet.kernel.namespaces.netns import NetworkNamespace
from dranet.model.plan import PreparedClaim, RequestMetadata
from dranet.runtime.containers import CdiSpecs
from testbed.machine.hardware import MACHINE
from tests.driver.bench import Bench, sandbox
from tests.machine import kernel_view
from tests.support import metadata_reader
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.machine

IGB = MACHINE.function("igb0")
SYSFS = Path("/sys")


class NoFailures(Announcer):
    """Nothing may fail."""

    def __init__(self) -> None:
        pass

    def metadata_failed(self, record: PreparedClaim, error: DranetError) -> None:
        pytest.fail(f"{record.claim}: {error}")


@pytest.fixture
def node() -> Iterator[Namespace]:
    """The machine's own namespace."""
    kernel_view.raise_links()
    kernel_view.run("ip", "netns", "attach", "machine", str(os.getpid()))
    with NetworkNamespace.open("/run/netns/machine") as here:
        yield Namespace("machine", here)
    kernel_view.run("ip", "netns", "del", "machine")


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace]) -> Namespace:
    return make_namespace()


@pytest.fixture
def bench(tmp_path: Path, node: Namespace) -> Iterator[Bench]:
    made = Bench(tmp_path, node)
    metadata = DeviceMetadata(
        made.store,
        MetadataFiles(tmp_path, "dra.net"),
        CdiSpecs(tmp_path / "cdi", "dra.net"),
        NoFailures(),
        lambda: DEFAULT_POLICY,
        SYSFS,
    )
    made.hooks = PodHooks(
        made.store,
        made.attachments,
        made.told,
        HookListeners(made.snapshots.append),
        30,
        containers=ContainerServices(made.windows, metadata),
    )
    made.connect()
    yield made
    made.close()


def test_a_pod_finds_the_gids_of_the_rdma_device_that_it_alone_has(
    bench: Bench, pod: Namespace, tmp_path: Path
) -> None:
    table = SYSFS / "class/infiniband/mlx5_0/ports/1/gids"
    told_by_the_kernel = (table / "0").read_text().strip()
    record = bench.prepare(kernel_view.ifname(IGB.address), "net1", rdma_device="mlx5_0")
    bench.store.put(replace(record, metadata=(RequestMetadata("nic"),)))
    bench.run_sandbox(sandbox(pod))
    assert not table.exists()
    (found,) = metadata_reader.read_request(tmp_path / "metadata/claim-uid/nic").values()
    (device,) = found["requests"][0]["devices"]
    assert device["attributes"][RDMA_GIDS] == {"strings": [told_by_the_kernel]}
    assert device["networkData"]["interfaceName"] == "net1"
    (link,) = bench.told.attached_links
    assert (link.rdma_device, link.gids) == ("mlx5_0", (told_by_the_kernel,))
    bench.stop_sandbox(sandbox(pod))
    assert table.exists()


def test_the_folders_of_counters_stay_while_a_pod_has_what_is_in_them(bench: Bench, pod: Namespace) -> None:
    """So a container that has them mounted can start at any time, and sees what comes back."""
    ifname = kernel_view.ifname(IGB.address)
    folders = find_counter_folders(SYSFS, IGB.address)
    net, rdma = folders["net"], folders["infiniband"]
    assert (net / ifname / "statistics/rx_bytes").read_text().strip().isdigit()
    assert [path.name for path in rdma.iterdir()] == ["mlx5_0"]
    bench.prepare(ifname, "net1", rdma_device="mlx5_0")
    bench.run_sandbox(sandbox(pod))
    assert find_counter_folders(SYSFS, IGB.address) == folders
    assert [*net.iterdir(), *rdma.iterdir()] == []
    bench.stop_sandbox(sandbox(pod))
    assert (net / ifname / "statistics/rx_bytes").read_text().strip().isdigit()
    assert [path.name for path in rdma.iterdir()] == ["mlx5_0"]
