"""Names of the sockets of instances that overlap: short enough, stable, and never the same twice."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet import socket_names
from dranet.errors import SettingsError
from dranet.kubelet.sockets import PublishedSocket
from dranet.settings import Settings, load_settings

REGISTRY = Path("/var/lib/kubelet/plugins_registry")
UID = "6e4b6f5d-0f4c-4b8e-9a39-3c1c5d2f7a10"
HASHED_UID = "NP9sByAA-rg"
"""URL-safe base64 of the first 8 bytes of its SHA-256, by ``sha256sum`` and ``base64``."""

drivers = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
uids = st.uuids().map(str)


def registration(driver: str, uid: str = UID, registry: Path = REGISTRY) -> Path:
    return socket_names.registration_socket(registry, driver, uid)


def dra(driver: str, uid: str = UID) -> Path:
    return socket_names.dra_socket(Path("/var/lib/kubelet/plugins") / driver, uid)


def test_an_instance_without_a_uid_has_the_names_that_it_always_had() -> None:
    assert registration("dra.net", "") == REGISTRY / "dra.net-reg.sock"
    assert dra("dra.net", "").name == "dra.sock"


def test_the_whole_uid_is_preferred() -> None:
    assert registration("dra.net").name == f"dra.net-{UID}-reg.sock"
    assert dra("dra.net").name == f"dra-{UID}.sock"


@pytest.mark.parametrize(("length", "is_whole"), [(27, True), (28, False)])
def test_a_long_driver_name_gets_the_hashed_uid_in_its_registration_socket(
    length: int, is_whole: bool
) -> None:
    name = registration("d" * length).name
    assert name == f"{'d' * length}-{UID if is_whole else HASHED_UID}-reg.sock"


@pytest.mark.parametrize(("length", "is_hashed"), [(52, True), (53, False), (63, False)])
def test_a_very_long_driver_name_gets_the_shortest_form(length: int, is_hashed: bool) -> None:
    name = registration("d" * length).name
    if is_hashed:
        assert name == f"{'d' * length}-{HASHED_UID}-reg.sock"
    else:
        assert re.fullmatch(r"dra-[-_0-9A-Za-z]{22}-reg\.sock", name)


@pytest.mark.parametrize(
    ("length", "name", "size"),
    [
        (1, f"dra-{UID}.sock", 72),
        (36, f"dra-{UID}.sock", 107),
        (37, f"dra-{HASHED_UID}.sock", 83),
        (61, f"dra-{HASHED_UID}.sock", 107),
        (63, f"{HASHED_UID}.sock", 105),
    ],
)
def test_the_socket_in_the_plugin_folder_fits_beside_every_driver_name(
    length: int, name: str, size: int
) -> None:
    path = dra("d" * length)
    assert (path.name, len(os.fsencode(path))) == (name, size)


def test_a_custom_registry_folder_is_respected_and_counted() -> None:
    long = Path("/" + "x" * 60)
    assert registration("dra.net", registry=Path("/run/reg")) == Path(f"/run/reg/dra.net-{UID}-reg.sock")
    assert registration("dra.net", registry=long).parent == long
    assert registration("dra.net", registry=long).name == f"dra.net-{HASHED_UID}-reg.sock"


@given(driver=drivers, uid=uids)
def test_every_name_fits_also_hidden_and_is_the_same_each_time(driver: str, uid: str) -> None:
    for make in (registration, dra):
        path = make(driver, uid)
        assert socket_names.fits(path)
        assert make(driver, uid) == path
        hidden = [PublishedSocket(path).next_bind_path() for _ in range(3)]
        assert all(socket_names.fits(name) for name in hidden)


@given(first=st.tuples(drivers, uids), second=st.tuples(drivers, uids))
def test_two_instances_never_share_a_name(first: tuple[str, str], second: tuple[str, str]) -> None:
    if first == second:
        return
    assert registration(*first) != registration(*second)
    assert dra(*first) != dra(*second)
    assert PublishedSocket(dra(*first)).next_bind_path() != PublishedSocket(dra(*second)).next_bind_path()


@given(driver=drivers, uid=uids)
def test_one_uid_of_two_drivers_gives_two_names(driver: str, uid: str) -> None:
    assert registration(driver, uid) != registration(driver + "x", uid)


def test_settings_choose_the_names_and_judge_them_by_the_same_rule() -> None:
    settings = load_settings({"pod_uid": UID, "driver_name": "d" * 63}, {})
    assert settings.dra_socket.name == f"{HASHED_UID}.sock"
    assert len(settings.registration_socket.name) == len("dra-") + 22 + len("-reg.sock")
    with pytest.raises(SettingsError, match=rf"{HASHED_UID}\.sock has 1\d\d bytes"):
        load_settings({"pod_uid": UID, "kubelet_root": "/" + "k" * 80}, {})


@pytest.mark.parametrize("bad", ["a/b", "../x", "a b", "a\n", ".", "-x", "ü", "a" * 129])
def test_a_pod_uid_that_could_lead_elsewhere_is_refused(bad: str) -> None:
    with pytest.raises(SettingsError, match="--pod-uid: must be a pod's UID"):
        load_settings({"pod_uid": bad}, {})


@pytest.mark.parametrize("good", ["", UID, "2ac4c3a1d0e94f1b9c8d7e6f5a4b3c2d"])
def test_a_pod_uid_may_be_that_of_a_static_pod_or_empty(good: str) -> None:
    assert load_settings({"pod_uid": good}, {}) == Settings(pod_uid=good)
