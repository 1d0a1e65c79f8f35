"""Every example runs on the testbed, and its pods get what it promises."""

from __future__ import annotations

import pytest

from tests.examples.running import run_examples
from tests.examples.table import DGX, GB200, INFINIBAND, SMALL, SRIOV

pytestmark = [pytest.mark.testbed, pytest.mark.private_tree]


def test_the_first_examples_for_a_dgx() -> None:
    run_examples(DGX, only=slice(9))


def test_the_other_examples_for_a_dgx() -> None:
    run_examples(DGX, only=slice(9, None))


def test_examples_for_a_small_node() -> None:
    run_examples(SMALL, only=slice(3))


def test_the_example_with_an_ipvlan() -> None:
    run_examples(SMALL, only=slice(3, None))


def test_examples_with_a_dhcp_server_on_the_network() -> None:
    run_examples(SMALL, "dhcp")


def test_examples_for_infiniband() -> None:
    run_examples(INFINIBAND)


def test_examples_for_virtual_functions() -> None:
    run_examples(SRIOV)


def test_examples_beside_the_sriov_device_plugin() -> None:
    run_examples(SRIOV, "plugin")


def test_examples_beside_nvidias_dra_driver() -> None:
    run_examples(DGX, "vendor")


def test_the_example_with_mig_devices() -> None:
    run_examples(DGX, "mig")


def test_examples_for_a_gb200_tray() -> None:
    run_examples(GB200, "vendor")


def test_examples_beside_nvidias_device_plugin() -> None:
    run_examples(DGX, "plugin")
