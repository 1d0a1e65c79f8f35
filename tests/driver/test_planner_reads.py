"""What Prepare reads of real links; sysfs is a folder of the test's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dranet.driver.node_reader import NodeReader
from dranet.errors import DeviceError, KernelError, Reason
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def test_a_parent_is_read_without_what_stays_on_it(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "up", "mtu", "1400")
    (shown,) = node.read("link", "show", "eth1")
    state = node.run(lambda: NodeReader(Path("/sys")).read_parent("eth1"))

    assert (state.ifindex, state.ifname, state.mac) == (shown["ifindex"], "eth1", shown["address"])
    assert (state.mtu, state.up, state.addresses) == (1400, True, ())
    assert "tx-checksum-ip-generic" in state.ethtool.features  # what veth lets be changed
    assert state.sysctls["ipv4/conf/rp_filter"] in ("0", "1", "2")


def test_a_parent_may_carry_other_links(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "up")
    node.ip("link", "add", "link", "eth1", "name", "mv0", "type", "macvlan")
    assert node.run(lambda: NodeReader(Path("/sys")).read_parent("eth1")).up


def test_a_parent_must_be_up(node: Namespace) -> None:
    node.ip("link", "set", "eth1", "down")
    with pytest.raises(DeviceError, match="eth1 is down") as caught:
        node.run(lambda: NodeReader(Path("/sys")).read_parent("eth1"))
    assert caught.value.hint == "set it up on the node: ip link set eth1 up"


def test_a_parent_must_not_be_enslaved(node: Namespace) -> None:
    node.ip("link", "add", "br0", "type", "bridge")
    node.ip("link", "set", "eth1", "up", "master", "br0")
    with pytest.raises(DeviceError, match="eth1 is enslaved to br0") as caught:
        node.run(lambda: NodeReader(Path("/sys")).read_parent("eth1"))
    assert caught.value.reason is Reason.DEVICE_BUSY


def test_a_link_that_is_not_there(node: Namespace) -> None:
    reader = NodeReader(Path("/sys"))
    for read in (reader.read_parent, reader.read_link, reader.read_mac):
        with pytest.raises(DeviceError) as caught:
            node.run(partial(read, "gone0"))
        assert caught.value.reason is Reason.DEVICE_NOT_FOUND


def test_the_largest_mtu_of_a_physical_functions_ports(tmp_path: Path) -> None:
    reader = NodeReader(tmp_path)
    assert reader.read_physical_function_mtu("0000:1a:00.0") is None

    for port, mtu in (("p0", "1500"), ("p1", "9000"), ("other", "65535")):
        write(tmp_path, f"class/net/{port}/mtu", mtu)
    for port in ("p0", "p1"):
        (tmp_path / "bus/pci/devices/0000:1a:00.0/net" / port).mkdir(parents=True)
    assert reader.read_physical_function_mtu("0000:1a:00.0") == 9000


def test_management_nodes_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="mlx5_0 has no management nodes"):
        NodeReader(tmp_path).read_management_nodes("mlx5_0")


def test_an_rdma_mode_that_cannot_be_read_is_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(warnings: list[str]) -> bool:
        warnings.append("read RDMA namespace mode: Operation not permitted")
        return False

    monkeypatch.setattr("dranet.driver.node_reader.read_netns_exclusive", fail)
    with pytest.raises(KernelError, match="not permitted"):
        NodeReader(Path("/sys")).read_rdma_exclusive()
