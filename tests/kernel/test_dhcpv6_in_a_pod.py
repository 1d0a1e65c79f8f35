"""dhcpcd with the configuration of ``docs/networking/address-pools.md``, in a pod, against Kea."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.dhcp_servers import find_program_or_skip
from tests.support.namespaces import Namespace
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/networking/address-pools.md"
ADDRESS, PREFIX = "fd00:1::100", "fd00:8::/60"
RENEW_SECONDS = 2
PLACES = {"KEA_PIDFILE_DIR": "/run", "KEA_LOCKFILE_DIR": "none"}


def read_configuration() -> str:
    (block,) = re.findall(r"```text\n(ipv6only.*?)```", GUIDE.read_text(), re.DOTALL)
    return str(block)


@pytest.fixture
def pod(make_namespace: Callable[..., Namespace], node: Namespace) -> Namespace:
    """With a NIC, and the link-local address that the kernel gives it."""
    namespace = make_namespace(lively=True)
    node.ip("link", "set", "eth1", "netns", namespace.name, "name", "net1")
    namespace.ip("link", "set", "net1", "up")
    return namespace


@contextmanager
def running(
    namespace: Namespace, log: Path, libraries: Path | None, command: str, state: str
) -> Iterator[None]:
    """A program as in a container of its own, with its own ``/run`` and ``/var/lib``; SIGTERM ends it."""
    script = f"mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir {state} && exec {command}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace.name, "unshare", "-m", "sh", "-c", script],
            env={
                **os.environ,
                **(PLACES if libraries is None else {**PLACES, "LD_LIBRARY_PATH": str(libraries)}),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        wait_until(lambda: has_ended(process), f"{command} ends")


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """After one more SIGTERM: dhcpcd 9.4.1 now and then loses one."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    return process.returncode is not None


def write_server(folder: Path) -> Path:
    lifetimes = {
        "renew-timer": RENEW_SECONDS,
        "rebind-timer": 60,
        "preferred-lifetime": 100,
        "valid-lifetime": 200,
    }
    subnet = {
        "id": 1,
        "subnet": "fd00:1::/64",
        "interface": "p-eth1",
        "pools": [{"pool": f"{ADDRESS} - {ADDRESS}"}],
        "pd-pools": [{"prefix": "fd00:8::", "prefix-len": 48, "delegated-len": 60}],
    }
    config = {
        "interfaces-config": {"interfaces": ["p-eth1"]},
        "lease-database": {
            "type": "memfile",
            "persist": True,
            "name": str(folder / "leases.csv"),
            "lfc-interval": 0,  # the program that cleans the file up is not there if Kea is not installed
        },
        "subnet6": [subnet],
        **lifetimes,
    }
    file = folder / "kea.json"
    file.write_text(json.dumps({"Dhcp6": config}))
    return file


def read_leases(folder: Path) -> dict[str, list[int]]:
    """By address or prefix the lifetimes that the server has recorded, one after another; 0 is a release."""
    found: dict[str, list[int]] = {}
    with (folder / "leases.csv").open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["address"], []).append(int(row["valid_lifetime"]))
    return found


def test_a_pod_gets_renews_and_releases_an_address_and_a_prefix(
    fabric: Namespace, pod: Namespace, tmp_path: Path
) -> None:
    kea, kea_libraries = find_program_or_skip("kea-dhcp6", "kea-dhcp6-server")
    dhcpcd, libraries = find_program_or_skip("dhcpcd", "dhcpcd-base")
    fabric.ip_lines("addr add fd00:1::1/64 dev p-eth1 nodad\naddr add fe80::1/64 dev p-eth1 nodad\n")
    configuration = tmp_path / "dhcpcd.conf"
    configuration.write_text(read_configuration())
    server_log, client_log = tmp_path / "server", tmp_path / "client"
    serve = f"{kea} -c {write_server(tmp_path)}"
    ask = f"{dhcpcd} -B -f {configuration} net1"
    with running(fabric, server_log, kea_libraries, serve, "/var/lib/kea"):
        wait_until((tmp_path / "leases.csv").exists, "Kea starts")
        with running(pod, client_log, libraries, ask, "/var/lib/dhcpcd"):
            wait_until(lambda: len(read_leases(tmp_path).get(ADDRESS, ())) >= 2, "a lease is renewed")
            addresses = [info["local"] for link in pod.read("addr") for info in link["addr_info"]]
            assert ADDRESS in addresses
            routes = pod.read("-6", "route", "show", "type", "unreachable")
            assert [route["dst"] for route in routes] == [PREFIX]
        leases = read_leases(tmp_path)
    assert leases[ADDRESS][-1] == leases[PREFIX.partition("/")[0]][-1] == 0
    assert ADDRESS not in str(pod.read("addr"))
