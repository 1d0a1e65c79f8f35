"""Hardware files: the shipped ones describe what they promise, and a bad one is refused with field paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed.node.hardware import Hardware, known_hardware, load_hardware
from testbed.yamlfile import DATA, InvalidFile


def load_changed(tmp_path: Path, old: str, new: str) -> Hardware:
    text = (DATA / "two-nic.yaml").read_text()
    assert old in text
    path = tmp_path / "node.yaml"
    path.write_text(text.replace(old, new, 1))
    return load_hardware(str(path))


@pytest.mark.parametrize("path", known_hardware(), ids=lambda p: p.stem)
def test_every_shipped_file_loads_under_its_own_name(path: Path) -> None:
    assert load_hardware(path.stem).name == path.stem


@pytest.mark.parametrize("path", known_hardware(), ids=lambda p: p.stem)
def test_nodes_of_one_network_have_addresses_of_their_own(path: Path) -> None:
    hardware = load_hardware(path.stem)
    nodes = [hardware.as_node(number) for number in range(8)]
    assert nodes[0] == hardware
    for field in ("mac", "address"):
        values = [getattr(placed.nic, field) for node in nodes for placed in node.nics()]
        assert len(set(values)) == len(values)
    assert [placed.nic.ifname for placed in nodes[7].nics()] == [p.nic.ifname for p in hardware.nics()]


def test_a_network_without_room_for_another_node_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nic\.address: 10\.\d+\.\d+\.\d+/24 is not in"):
        load_hardware("dgx-h100").as_node(16)


class TestDgxH100:
    dgx = load_hardware("dgx-h100")

    def test_it_has_two_sockets_eight_gpus_eight_rails_two_storage_nics_and_a_management_nic(self) -> None:
        gpus = [p for p in self.dgx.placed() if p.function.gpu]
        networks = [n.nic.network for n in self.dgx.nics()]
        assert [s.numa_node for s in self.dgx.sockets] == [0, 1]
        assert len(gpus) == 8
        assert sorted(networks) == sorted(
            ["management", "storage0", "storage1", *(f"rail{i}" for i in range(8))]
        )

    def test_each_gpu_shares_a_root_and_a_switch_with_exactly_one_rail_nic(self) -> None:
        rails = [n.placed for n in self.dgx.nics() if n.nic.network.startswith("rail")]
        for gpu in (p for p in self.dgx.placed() if p.function.gpu):
            beside = [nic for nic in rails if nic.root == gpu.root]
            assert len(beside) == 1
            assert beside[0].path[:2] == gpu.path[:2]
            assert beside[0].path[2] != gpu.path[2]

    def test_four_switches_hang_on_each_socket_under_roots_of_their_own(self) -> None:
        upstream = [p for p in self.dgx.placed() if p.function.part == "switch" and len(p.path) == 2]
        assert [p.numa_node for p in upstream] == [0] * 4 + [1] * 4
        assert len({p.root for p in upstream}) == 8

    def test_only_the_management_network_has_the_default_route(self) -> None:
        defaults = [
            name
            for name, network in self.dgx.networks.items()
            if any(route.to == "default" for route in network.routes)
        ]
        assert defaults == ["management"]


class TestBadFiles:
    @pytest.mark.parametrize(
        ("old", "new", "fault"),
        [
            ('class: "030200"', 'class: "0302"', "parts.h100.class: String should match"),
            ("network: rail0", "network: rail9", "below[0].nic.network: no network 'rail9'"),
            ("address: 10.64.0.1/24", "address: 10.64.1.9/24", "10.64.1.9/24 is not in 10.64.0.0/24"),
            ("part: h100", "part: h200", "part: no part 'h200'"),
            (
                "ifname: eno1",
                "ifname: enp35s0np0",
                "nic.ifname: enp35s0np0 is already at sockets[0].roots[0]",
            ),
            ("ifname: eno1", "ifname: this-name-is-too-long", "nic.ifname: String should match"),
            ("b8:3f:d2:6c:00:23", "b9:3f:d2:6c:00:23", "nic.mac: is a multicast address"),
            ("minor: 1", "minor: 0", "gpu.minor: 0 is already at"),
            ("0000:84:00.0", "0000:8g:00.0", "functions[0].below[0].below[1].below[0].address: String"),
            (
                "cpus: 4-7",
                "cpus: 4-7\n    cores: 4",
                "sockets[1].cores: unknown field; known are numa_node, cpus, roots",
            ),
        ],
    )
    def test_the_fault_is_named_with_its_field_path(
        self, tmp_path: Path, old: str, new: str, fault: str
    ) -> None:
        with pytest.raises(InvalidFile) as caught:
            load_changed(tmp_path, old, new)
        assert fault in caught.value.message

    def test_every_fault_is_named_at_once(self, tmp_path: Path) -> None:
        data = yaml.safe_load((DATA / "two-nic.yaml").read_text())
        del data["name"]
        data["sockets"][0]["numa_node"] = -1
        path = tmp_path / "node.yaml"
        path.write_text(yaml.safe_dump(data))
        with pytest.raises(InvalidFile, match=r"name: is required; sockets\[0\]\.numa_node: Input should"):
            load_hardware(str(path))

    def test_an_endpoint_has_nothing_below_it(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match="only a bridge"):
            load_changed(tmp_path, "part: switch", "part: h100")

    def test_an_unknown_name_says_which_exist(self) -> None:
        with pytest.raises(
            InvalidFile, match=r"nothing is called dgx-b300 \(known are dgx-h100, gb200, two-nic"
        ):
            load_hardware("dgx-b300")

    def test_an_absent_file_and_bad_yaml_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match="No such file"):
            load_hardware(str(tmp_path / "absent.yaml"))
        (tmp_path / "bad.yaml").write_text("a: [")
        with pytest.raises(InvalidFile, match=r"bad\.yaml:1:5: expected the node content, but found"):
            load_hardware(str(tmp_path / "bad.yaml"))
