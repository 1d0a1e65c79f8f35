"""The layout ``virtual-node`` was recorded in this machine, for tests elsewhere: it still shows the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dranet.inventory.offer import take_inventory
from dranet.model.facts import NodeFacts
from tests.data import layouts
from tests.machine import kernel_view

pytestmark = pytest.mark.machine

LAYOUT = "virtual-node"

_OF_ONE_BOOT = frozenset(
    f"dra.net/{name}"
    for name in (
        *(
            "mac",
            "permanentMac",
            "rdmaNodeGuid",
            "rdmaPortGuid",
        ),  # of virtual functions: made up by the driver
        *("ifName", "driverVersion"),  # by order of arrival; that of the kernel
        *("state", "carrier", "linkSpeedMbps", "duplex"),  # seconds late
    )
)
"""Attributes that another boot or another kernel of the same machine may say otherwise."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    expected: dict[str, Any] = json.loads(layouts.expected_file(LAYOUT).read_text(encoding="utf-8"))
    return expected


@pytest.fixture(scope="module")
def shown(facts: NodeFacts) -> dict[str, Any]:
    return layouts.expectation(take_inventory(facts, {}))


@pytest.fixture(scope="module", autouse=True)
def as_made() -> None:
    kernel_view.settle()


def lasting(expectation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is the same at each boot, by device; without ``left_out``, which follows from all the rest."""
    return {
        device["name"]: {
            **{key: device[key] for key in ("kind", "published", "reason")},
            **{k: v for k, v in device["attributes"].items() if k not in _OF_ONE_BOOT},
        }
        for device in expectation["devices"]
    }


def test_the_recorded_devices_are_those_of_the_machine_in_the_same_order(
    recorded: dict[str, Any], shown: dict[str, Any]
) -> None:
    assert [device["name"] for device in shown["devices"]] == [d["name"] for d in recorded["devices"]]


def test_each_recorded_device_is_decided_and_described_as_in_the_machine(
    recorded: dict[str, Any], shown: dict[str, Any]
) -> None:
    here = lasting(shown)
    for name, described in lasting(recorded).items():
        assert here.get(name) == described, name


def test_the_recorded_distances_are_those_of_the_machine(
    recorded: dict[str, Any], shown: dict[str, Any]
) -> None:
    assert shown["distances"] == recorded["distances"]
