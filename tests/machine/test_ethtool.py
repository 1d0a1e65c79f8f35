"""Settings of real drivers, one by one and together: set, shown by ethtool, given back."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pytest

from dranet.errors import KernelError
from dranet.kernel.ethtool.settings import difference, read_ethtool_state, restore_ethtool, set_ethtool
from dranet.kernel.netlink.socket import NETLINK_GENERIC, NetlinkSocket
from dranet.model.plan import EthtoolState
from testbed.machine.hardware import MACHINE
from tests.machine import kernel_view

pytestmark = pytest.mark.machine

T = TypeVar("T")

REAL_NICS = ("igb0", "igb0/1", "chipset")
"""igb, igbvf, e1000e. QEMU's virtio_net has but one ring size and one channel."""

NICS = (*REAL_NICS, "virtio0")

OPTIONS = ("-k", "-g", "-l", "-c", "--show-priv-flags")


@dataclass(frozen=True)
class Nic:
    """One NIC of the machine, as our code and as ethtool see it."""

    ifname: str
    ifindex: int

    def read(self) -> EthtoolState:
        return self._ask(lambda genl: read_ethtool_state(genl, self.ifindex))

    def set(self, settings: EthtoolState) -> None:
        self._ask(lambda genl: set_ethtool(genl, self.ifindex, settings, self.ifname))

    def restore(self, state: EthtoolState) -> list[str]:
        return self._ask(lambda genl: restore_ethtool(genl, self.ifindex, state, self.ifname))

    def _ask(self, function: Callable[[NetlinkSocket], T]) -> T:
        with NetlinkSocket.open(NETLINK_GENERIC) as genl:
            return function(genl)

    def shown(self, *options: str) -> dict[str, str]:
        """What ``ethtool`` prints for each option; empty where the driver has no such settings."""
        return {
            option: subprocess.run(["ethtool", option, self.ifname], capture_output=True, text=True).stdout
            for option in options or OPTIONS
        }

    def shown_numbers(self, option: str) -> dict[str, int]:
        """``ethtool -g``, ``-l`` or ``-c`` by ethtool's own words, the current settings."""
        text = self.shown(option)[option]
        _, _, current = text.rpartition("Current hardware settings:")
        return {
            name.lower(): int(n) for name, n in re.findall(r"^([\w -]+):\s+(\d+)$", current, re.MULTILINE)
        }


@pytest.fixture(params=NICS)
def nic(request: pytest.FixtureRequest) -> Iterator[Nic]:
    name = kernel_view.ifname(MACHINE.function(request.param).address)
    (entry,) = kernel_view.ip("link", "show", "dev", name)
    kernel_view.run("ip", "link", "set", name, "up")
    yield Nic(name, entry["ifindex"])
    kernel_view.run("ip", "link", "set", name, "up")


WORDS = {
    "rings": ("-g", {"rx": "rx", "tx": "tx", "rx_mini": "rx mini", "rx_jumbo": "rx jumbo"}),
    "channels": ("-l", {"rx": "rx", "tx": "tx", "other": "other", "combined": "combined"}),
    "coalesce": (
        "-c",
        {
            "rx_usecs": "rx-usecs",
            "tx_usecs": "tx-usecs",
            "rx_max_frames": "rx-frames",
            "tx_max_frames": "tx-frames",
        },
    ),
}
"""ethtool's words for the settings of a claim."""


def named_in_claims(state: EthtoolState) -> dict[str, Mapping[str, int]]:
    parts = {"rings": state.rings, "channels": state.channels, "coalesce": state.coalesce}
    return {part: {n: v for n, v in values.items() if n in WORDS[part][1]} for part, values in parts.items()}


def test_what_is_read_is_what_ethtool_shows(nic: Nic) -> None:
    for part, values in named_in_claims(nic.read()).items():
        option, words = WORDS[part]
        shown = nic.shown_numbers(option)
        assert {words[name]: value for name, value in values.items()} == {
            word: shown[word] for word in words.values() if word in shown
        }, part


def other_numbers(state: EthtoolState) -> Iterator[tuple[str, str, int]]:
    """(part, name, another value that the driver takes) for each setting of a claim."""
    for part, values in named_in_claims(state).items():
        for name, value in values.items():
            most = state.maxima.get(f"{part}.{name}")
            if part == "rings" and most and most > 256:
                yield part, name, most if value != most else most // 2
            elif part == "channels" and name == "combined" and most and most > 1:
                yield part, name, 1 if value != 1 else 2
            elif name == "rx_usecs":
                yield part, name, 80 if value != 80 else 40


def one(part: str, name: str, value: int) -> EthtoolState:
    return EthtoolState(
        rings={name: value} if part == "rings" else {},
        channels={name: value} if part == "channels" else {},
        coalesce={name: value} if part == "coalesce" else {},
    )


@pytest.mark.parametrize("state", ["up", "down"])
@pytest.mark.parametrize("nic", REAL_NICS, indirect=True)
def test_each_number_is_set_shown_by_ethtool_and_given_back(nic: Nic, state: str) -> None:
    kernel_view.run("ip", "link", "set", nic.ifname, state)
    before, shown = nic.read(), nic.shown()
    others = list(other_numbers(before))
    assert {(part, name) for part, name, _ in others} >= {
        ("rings", "rx"),
        ("rings", "tx"),
        ("coalesce", "rx_usecs"),
    }
    for part, name, value in others:
        option, words = WORDS[part]
        nic.set(one(part, name, value))
        assert nic.shown_numbers(option)[words[name]] == value, (part, name)
        assert nic.restore(before) == [], (part, name)
        assert nic.shown() == shown, (part, name)


@pytest.mark.parametrize("nic", ["igb0"], indirect=True)
def test_several_settings_are_set_together_and_given_back(nic: Nic) -> None:
    before, shown = nic.read(), nic.shown()
    wanted = many(before, {"legacy-rx": True})
    nic.set(wanted)
    assert difference(wanted, nic.read()) == []
    now = nic.shown()
    assert {option for option in OPTIONS if now[option] != shown[option]} == set(OPTIONS)
    assert re.search(r"^legacy-rx *: on$", now["--show-priv-flags"], re.MULTILINE)
    assert nic.restore(before) == []
    assert nic.shown() == shown


@pytest.mark.parametrize("nic", ["chipset"], indirect=True)
def test_what_was_set_beside_a_refused_setting_is_given_back(nic: Nic) -> None:
    before, shown = nic.read(), nic.shown()
    with pytest.raises(
        KernelError, match=f"set private flag s0ix-enabled=on of {nic.ifname}: .*EINVAL"
    ) as caught:
        nic.set(many(before, {"s0ix-enabled": True}))  # QEMU's card has no such sleep
    assert caught.value.operation == "set-ethtool"
    assert nic.restore(before) == []
    assert nic.shown() == shown


def many(before: EthtoolState, private_flags: Mapping[str, bool]) -> EthtoolState:
    """Another value for every number of a claim, these flags, and an offload."""
    numbers: dict[str, dict[str, int]] = {"rings": {}, "channels": {}, "coalesce": {}}
    for part, name, value in other_numbers(before):
        numbers[part][name] = value
    return EthtoolState(
        rings=numbers["rings"],
        channels=numbers["channels"],
        coalesce=numbers["coalesce"],
        private_flags=private_flags,
        features={"rx-gro": not before.features["rx-gro"]},
    )


@pytest.mark.parametrize("nic", ["virtio0"], indirect=True)
def test_a_driver_that_tells_a_number_but_does_not_take_another_is_quoted(nic: Nic) -> None:
    with pytest.raises(KernelError, match=f"set coalesce rx_usecs=80 of {nic.ifname}: ") as caught:
        nic.set(one("coalesce", "rx_usecs", 80))
    assert caught.value.errno == errno.EOPNOTSUPP
    assert caught.value.hint == f"the driver cannot change this; `ethtool -c {nic.ifname}` shows what it has"


def test_more_than_the_device_has_is_refused_with_what_it_has(nic: Nic) -> None:
    before, shown = nic.read(), nic.shown()
    most = before.maxima["rings.rx"]
    with pytest.raises(KernelError) as caught:
        nic.set(one("rings", "rx", most + 1))
    assert caught.value.message == (
        f"set ethtool settings of {nic.ifname}: rings rx={most + 1}: the device takes 0 to {most}"
    )
    assert nic.shown() == shown


def test_a_private_flag_that_the_driver_does_not_have_is_refused(nic: Nic) -> None:
    with pytest.raises(KernelError, match="the driver has no private flag rx_cqe_compress") as caught:
        nic.set(EthtoolState(private_flags={"rx_cqe_compress": True}))
    assert caught.value.hint.startswith("the driver has private flag: ")


@pytest.mark.parametrize("state", ["up", "down"])
def test_each_offload_is_switched_or_said_to_be_kept_and_given_back(nic: Nic, state: str) -> None:
    kernel_view.run("ip", "link", "set", nic.ifname, state)
    before, shown = nic.read(), nic.shown("-k")
    kept: list[str] = []
    for name, value in before.features.items():
        refusal = refused(nic, EthtoolState(features={name: not value}))
        if refusal:
            assert f"the driver kept {name} {'on' if value else 'off'}" in refusal
            kept.append(name)
        else:
            assert nic.shown("-k") != shown, name
        assert nic.restore(before) == [], name
        assert nic.shown("-k") == shown, name
    assert set(kept) <= {"tx-vlan-hw-insert", "rx-gro-hw"}


@pytest.mark.parametrize("nic", ["igb0"], indirect=True)
def test_what_a_driver_switches_together_is_said_to_go_together(nic: Nic) -> None:
    before, shown = nic.read(), nic.shown("-k")
    assert before.features["rx-vlan-hw-parse"]
    refusal = refused(nic, EthtoolState(features={"tx-vlan-hw-insert": False}))
    assert refusal.endswith("the driver kept tx-vlan-hw-insert on: it goes with rx-vlan-hw-parse")
    nic.set(EthtoolState(features={"tx-vlan-hw-insert": False, "rx-vlan-hw-parse": False}))
    assert nic.restore(before) == []
    assert nic.shown("-k") == shown


def refused(nic: Nic, settings: EthtoolState) -> str:
    """Why the settings were not taken; empty where they were."""
    try:
        nic.set(settings)
    except KernelError as error:
        return error.message
    return ""
