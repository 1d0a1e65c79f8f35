"""The file of address sources: read whole, with every problem and its line, and again when it changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import ClaimError, SettingsError
from dranet.model.ipam import CniNetwork, IpamProblem, parse_cni, parse_entry
from dranet.view import ipam_file
from dranet.view.ipam_file import IpamFile, read_ipam_file

GOOD = """
storage:
  cni:
    cniVersion: 1.0.0
    ipam:
      type: host-local
      subnet: 10.1.0.0/24
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_entry_is_a_complete_network_configuration(tmp_path: Path) -> None:
    sources, _ = read_ipam_file(write(tmp_path / "ipam.yaml", GOOD))
    found = sources["storage"]
    assert isinstance(found, CniNetwork)
    assert found.config == {
        "cniVersion": "1.0.0",
        "name": "storage",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
    }
    assert (found.plugin, found.version, found.has_check) == ("host-local", (1, 0, 0), True)


@pytest.mark.parametrize(
    ("change", "has_check"), [({"cniVersion": "0.3.1"}, False), ({"disableCheck": True}, False), ({}, True)]
)
def test_check_needs_a_version_that_has_it(change: dict[str, Any], has_check: bool) -> None:
    source = parse_cni("a", {"ipam": {"type": "host-local"}, **change})
    assert source.has_check is has_check


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "ipam.yaml:1: the file: must be a mapping of names to address sources"),
        ("a b: {cni: {ipam: {type: x}}}", "ipam.yaml:1: a b: a name has at most 63 letters"),
        ("7: {cni: {ipam: {type: x}}}", "quote numbers"),
        ("a: 7", "ipam.yaml:1: a: must be a mapping with one key of cni, pool"),
        ("a: {cni: {}, more: 1}", "a: must be a mapping with one key of cni, pool"),
        ("a: {other: {}}", "a: must be a mapping with one key of cni, pool"),
        ("a:\n  cni: 7", "ipam.yaml:2: a.cni: must be a CNI network configuration"),
        ("a:\n  cni:\n    type: x", "ipam.yaml:3: a.cni.ipam: must be the configuration of an IPAM plugin"),
        ("a: {cni: {ipam: {}}}", "a.cni.ipam.type: must be the name of an IPAM plugin"),
        ("a: {cni: {ipam: {type: ../../bin/sh}}}", "a.cni.ipam.type: must be the name of an IPAM plugin"),
        ("a: {cni: {ipam: {type: dhcp}}}", "set interface.dhcp: true in the claim instead"),
        ("a: {cni: {cniVersion: 0.2.0, ipam: {type: x}}}", "a.cni.cniVersion: must be one of 0.3.0"),
        ("a: {cni: {cniVersion: 1.0, ipam: {type: x}}}", "a.cni.cniVersion: must be one of 0.3.0"),
        ("a: {cni: {name: a/b, ipam: {type: x}}}", "a.cni.name: must be a name"),
        ("a: {cni: {plugins: [], ipam: {type: x}}}", "a.cni.plugins: must be absent"),
        ("a:\n  pool:\n    rails: 0\n    nodes: {pattern: x}", "ipam.yaml:3: a.pool.rails"),
        ("a: {pool: {rails: 1, subnets: [10.0.0.0/24], nodes: {}}}", "a.pool.nodes: must have one of"),
        ("a: {cni: {disableCheck: 1, ipam: {type: x}}}", "a.cni.disableCheck: must be true or false"),
    ],
)
def test_a_bad_entry_names_its_place_and_the_fix(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_ipam_file(write(tmp_path / "ipam.yaml", text))
    assert expected in str(caught.value)


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"a\.cni\.ipam.*b\.cni\.ipam"):
        read_ipam_file(write(tmp_path / "ipam.json", '{"a": {"cni": {}}, "b": {"cni": {}}}'))


def test_a_changed_file_is_read_again_and_a_bad_one_leaves_the_last_in_force(tmp_path: Path) -> None:
    file = write(tmp_path / "ipam.yaml", GOOD)
    sources = IpamFile(file)
    write(file, GOOD.replace("storage", "backup"))
    assert isinstance(sources.find("backup"), CniNetwork)
    with pytest.raises(ClaimError, match="storage is not in the driver's ipam_file; known there: backup"):
        sources.find("storage")
    write(file, "[]")
    assert isinstance(sources.find("backup"), CniNetwork)
    assert "must be a mapping" in sources.problem
    write(file, "")
    assert sources.get() == {}
    assert sources.problem == ""


def test_two_claims_that_ask_while_the_file_is_read_both_get_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "ipam.yaml", GOOD)
    sources = IpamFile(file)
    write(file, GOOD.replace("storage", "backup"))
    is_reading, may_read = threading.Event(), threading.Event()
    read = ipam_file.read_ipam_file

    def read_slowly(*arguments: Any) -> Any:
        is_reading.set()
        assert may_read.wait(20)
        return read(*arguments)

    monkeypatch.setattr(ipam_file, "read_ipam_file", read_slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(sources.find, "backup")
        assert is_reading.wait(20)
        second = threads.submit(sources.find, "backup")
        wait([second], 0.2)  # it would have the last sources by then
        may_read.set()
        assert first.result() == second.result()


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cni", "ipam", "type", "name", "cniVersion", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.text(max_size=8), JSON)
def test_any_value_is_an_entry_or_a_problem(name: str, value: Any) -> None:
    with suppress(IpamProblem):
        parse_entry(name, value)
