"""Sections 1.2 and 4.2: names of sockets, their 107 bytes, and two instances that never meet at one path."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet import socket_names
from dranet.errors import SettingsError
from dranet.kubelet.sockets import check_socket_path
from dranet.settings import load_settings
from tests.contract.kubelet_room import Room

REGISTRY = Path("/var/lib/kubelet/plugins_registry")
UID = "6e4b6f5d-0f4c-4b8e-9a39-3c1c5d2f7a10"


def plugin_dir(driver: str) -> Path:
    return Path("/var/lib/kubelet/plugins") / driver


def driver_of(length: int) -> str:
    return "d" * length


DRIVERS = st.integers(1, 63).map(driver_of)
UIDS = st.uuids().map(str)


@pytest.mark.parametrize(
    ("pod_uid", "suffix", "longest"),
    [("", "-reg.sock", 63), (UID, f"-{UID}-reg.sock", 27)],
)
def test_a_registration_socket_has_its_plain_name_while_that_fits(
    pod_uid: str, suffix: str, longest: int
) -> None:
    """1.2, TestRollingUpdateRegistrarSocketFile_prefersFullUID: 43 or 80 bytes beside the driver's name."""
    fits = socket_names.registration_socket(REGISTRY, driver_of(longest), pod_uid)
    assert fits.name == driver_of(longest) + suffix
    assert len(os.fsencode(fits)) <= 107
    if pod_uid:
        longer = socket_names.registration_socket(REGISTRY, driver_of(longest + 1), pod_uid)
        assert longer.name != driver_of(longest + 1) + suffix


@pytest.mark.parametrize("length", [28, 52])
def test_a_long_driver_name_gets_a_hash_in_place_of_the_uid(length: int) -> None:
    """1.2, usesHashedUIDForLongDriverName: 11 characters of SHA-256, URL-safe and without padding."""
    name = socket_names.registration_socket(REGISTRY, driver_of(length), UID).name
    assert name == f"{driver_of(length)}-NP9sByAA-rg-reg.sock"


@pytest.mark.parametrize("length", [53, 63])
def test_a_very_long_driver_name_gets_the_shortest_form(length: int) -> None:
    """1.2, usesShortestFormForVeryLongDriverName: a hash of driver and UID together."""
    path = socket_names.registration_socket(REGISTRY, driver_of(length), UID)
    assert path.name.startswith("dra-")
    assert len(path.name) == len("dra--reg.sock") + 22
    other = socket_names.registration_socket(REGISTRY, driver_of(length), UID[::-1])
    assert other != path


@given(driver=DRIVERS, pod_uid=UIDS)
def test_no_name_is_ever_over_the_bound(driver: str, pod_uid: str) -> None:
    """1.2, lengthBound: whatever the driver's name, and the hidden name beside it, too."""
    for path in (
        socket_names.registration_socket(REGISTRY, driver, pod_uid),
        socket_names.dra_socket(plugin_dir(driver), pod_uid),
    ):
        check_socket_path(path)
        assert len(os.fsencode(path)) <= 107


@given(driver=DRIVERS, pod_uid=UIDS)
def test_names_are_stable(driver: str, pod_uid: str) -> None:
    """1.2, deterministic: an instance that restarts in its pod finds its own names again."""
    for _ in range(2):
        first = socket_names.registration_socket(REGISTRY, driver, pod_uid)
        assert first == socket_names.registration_socket(REGISTRY, driver, pod_uid)


@given(driver=DRIVERS, other=DRIVERS, uids=st.tuples(UIDS, UIDS).filter(lambda pair: pair[0] != pair[1]))
def test_different_instances_never_share_a_name(driver: str, other: str, uids: tuple[str, str]) -> None:
    """1.2, distinctInputs: two pods of one driver, and one pod UID under two drivers."""
    first, second = (socket_names.registration_socket(REGISTRY, driver, uid) for uid in uids)
    assert first != second
    assert socket_names.dra_socket(plugin_dir(driver), uids[0]) != socket_names.dra_socket(
        plugin_dir(driver), uids[1]
    )
    if driver != other:
        assert socket_names.registration_socket(REGISTRY, other, uids[0]) != first


def test_a_registry_elsewhere_is_respected(tmp_path: Path) -> None:
    """1.2, respectsCustomRegistryDir: the kubelet's root may be moved, and its length counts."""
    assert socket_names.registration_socket(tmp_path, "d", UID).parent == tmp_path
    deep = Path("/" + "r" * 70)
    assert socket_names.registration_socket(deep, driver_of(15), UID).name.startswith("dra-")


@pytest.mark.parametrize(("length", "plain"), [(36, True), (37, False), (63, False)])
def test_the_dra_socket_of_an_instance_fits_for_every_driver_name(length: int, plain: bool) -> None:
    """1.2, TestRollingUpdatePluginSocketPathLength: 36 characters still with the whole UID, then hashed."""
    path = socket_names.dra_socket(plugin_dir(driver_of(length)), UID)
    assert (path.name == f"dra-{UID}.sock") is plain
    assert len(os.fsencode(path)) <= 107


def test_an_instance_that_is_alone_has_the_names_of_old() -> None:
    """1.2, TestPluginSocketAutomaticNaming: without a pod UID ``dra.sock`` and ``<driver>-reg.sock``."""
    settings = load_settings({}, {})
    assert settings.dra_socket == plugin_dir("dra.net") / "dra.sock"
    assert settings.registration_socket == REGISTRY / "dra.net-reg.sock"
    settings = load_settings({"pod_uid": UID}, {})
    assert settings.dra_socket == plugin_dir("dra.net") / f"dra-{UID}.sock"
    assert settings.registration_socket == REGISTRY / f"dra.net-{UID}-reg.sock"


@pytest.mark.socket
def test_a_path_of_107_bytes_binds_and_one_more_is_refused_by_name(tmp_path: Path) -> None:
    """1.2, 11.2: the limit of the kernel, refused before gRPC says something unclear."""
    longest = tmp_path / ("s" * (107 - len(os.fsencode(tmp_path)) - 1))
    check_socket_path(longest)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest))
    with pytest.raises(SettingsError, match="108 bytes, a UNIX socket takes 107"):
        check_socket_path(longest.with_name(f"{longest.name}s"))


@pytest.mark.socket
async def test_an_instance_removes_only_its_own_sockets(root: Path) -> None:
    """4.2: the other instance's files and a dead socket of a crash stay as they are."""
    room = Room(root)
    neighbours = [room.registry / f"dra.net-{UID}-reg.sock", room.folder / f"dra-{UID}.sock"]
    async with room.serving():
        for path in neighbours:
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(path))
    assert [path.exists() for path in neighbours] == [True, True]
    assert not room.calls.registration_socket.exists()
    assert not room.calls.dra_socket.exists()
