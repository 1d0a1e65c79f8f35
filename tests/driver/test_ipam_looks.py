"""What reconcile does for addresses of IPAM plugins: other claims go on, whatever a plugin or a file does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dranet.driver.instances.members import Work
from dranet.driver.ipam import CHECKS_AT_ONCE
from dranet.errors import IpamError, StoreError
from dranet.model.claim import Claim
from dranet.model.ipam import IpamRequest
from tests.driver.test_prepare_ipam import NETWORK, Bench, a_claim, in_node, write_sources
from tests.support.cni_plugins import find_plugins, write_plugin
from tests.support.namespaces import Namespace
from tests.support.waiting import until

pytestmark = pytest.mark.kernel


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []
    write_sources(tmp_path)

    def make(*claims: Claim, **how: Any) -> Bench:
        made.append(Bench(tmp_path, *claims, **how))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def test_a_damaged_entry_keeps_no_other_address_from_being_checked(
    node: Namespace, make_bench: Callable[..., Bench]
) -> None:
    bench = make_bench()

    async def walk() -> None:
        assert await bench.prepare(a_claim(1)) == ""
        assert await bench.prepare(a_claim(2)) == ""
        (bench.folder / "journal" / "uid-1.json").write_text("damaged")
        (bench.folder / "networks" / NETWORK / "10.99.0.3").unlink()
        with pytest.raises(StoreError, match="uid-1"):
            await bench.look()
        assert len(bench.told.doubted) == 1
        assert bench.count("dranet_ipam_failed_checks") == 1

    in_node(node, walk)


def test_an_unprepare_waits_for_a_check_of_the_claim_and_releases_the_address(
    node: Namespace, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranet.driver.ipam.ORPHAN_SECONDS", 0.0)
    bench = make_bench()
    is_asked, may_answer = threading.Event(), threading.Event()

    def check(*_: object) -> bool:
        is_asked.set()
        assert may_answer.wait(20)
        return True

    monkeypatch.setattr(bench.client, "check", check)

    async def walk() -> None:
        assert await bench.prepare(a_claim()) == ""
        looking = asyncio.create_task(bench.look())
        await until(is_asked.is_set)
        assert bench.work.is_held(Work.CLAIM, "uid-1")
        ending = asyncio.create_task(bench.unprepare(a_claim()))
        may_answer.set()
        assert await ending == ""
        await looking
        assert (bench.given, bench.told.unreleased) == ({}, [])

    in_node(node, walk)


def test_checks_leave_threads_for_claims(
    node: Namespace, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    begun: list[str] = []
    may_answer = threading.Event()

    def check(request: IpamRequest, *_: object) -> bool:
        begun.append(request.pod_name)
        assert may_answer.wait(20)
        return True

    monkeypatch.setattr(bench.client, "check", check)

    async def walk() -> None:
        claims = [a_claim(number) for number in range(2 * CHECKS_AT_ONCE)]
        assert set(await asyncio.gather(*map(bench.prepare, claims))) == {""}
        looking = asyncio.create_task(bench.look())
        await until(lambda: len(begun) >= CHECKS_AT_ONCE)
        assert await bench.prepare(a_claim(99)) == ""
        assert len(begun) == CHECKS_AT_ONCE
        may_answer.set()
        await looking
        assert len(begun) == len(claims)

    in_node(node, walk)


# --- a look has little time -----------------------------------------------------------------------------


def test_a_look_ends_when_its_time_is_over_and_the_next_goes_on_from_there(
    node: Namespace, make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranet.driver.ipam.LOOK_SECONDS", 0.0)
    real = find_plugins("host-local") / "host-local"
    plugins = write_plugin(tmp_path / "bin", "host-local", f"exec {real}")
    bench = make_bench(plugins=plugins)
    claims = [a_claim(number) for number in (1, 2, 3)]

    async def walk() -> None:
        for claim in claims:
            assert await bench.prepare(claim) == ""
        write_plugin(plugins, "host-local", "exit 1")
        for claim in claims:
            assert await bench.unprepare(claim) == ""
        write_plugin(plugins, "host-local", f"case $CNI_CONTAINERID in uid-1.*) exit 1;; esac; exec {real}")
        left = []
        for _ in range(4):
            await bench.look()
            left.append(sorted(container_id[:5] for container_id, _ in bench.given.values()))
        assert left == [["uid-1", "uid-2", "uid-3"], ["uid-1", "uid-3"], ["uid-1"], ["uid-1"]]

    in_node(node, walk)


def test_checks_end_with_the_time_of_a_look_and_the_next_goes_on_from_there(
    node: Namespace, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dranet.driver.ipam.LOOK_SECONDS", 0.0)
    bench = make_bench()
    checked: list[str] = []

    def check(request: IpamRequest, *_: object) -> bool:
        checked.append(request.pod_name)
        raise IpamError("gone")

    monkeypatch.setattr(bench.client, "check", check)

    async def walk() -> None:
        for number in (1, 2):
            assert await bench.prepare(a_claim(number)) == ""
        for _ in range(3):
            await bench.look()
        assert checked == ["pod-1-1", "pod-2-1", "pod-1-1"]
        assert bench.count("dranet_ipam_failed_checks") == len(bench.told.doubted) == 2

    in_node(node, walk)
