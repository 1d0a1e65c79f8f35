"""Prometheus' own programs, which judge and evaluate what is generated."""

from __future__ import annotations

import pytest

from testbed.debian.packages import Unavailable, cache_folder
from testbed.prometheus import Promtool, fetch_promtool


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    try:
        return fetch_promtool(cache_folder("promtool"), print)
    except Unavailable as shortage:
        pytest.skip(f"promtool: {shortage}")
