"""Shared by the driver's tests: a part of the driver that can be killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.driver.bench import Bench
from tests.support.namespaces import Namespace


@pytest.fixture
def start(tmp_path: Path, node: Namespace) -> Iterator[Callable[..., Bench]]:
    started: list[Bench] = []

    def make(boot_id: str = "boot", sysfs_root: Path = Path("/sys")) -> Bench:
        if started:
            started[-1].close()  # the driver before was killed
        started.append(Bench(tmp_path, node, boot_id, sysfs_root))
        return started[-1]

    yield make
    for bench in started:
        bench.close()
