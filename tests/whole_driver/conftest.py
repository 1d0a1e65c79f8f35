"""Programs of the distribution that several tests of the whole driver need."""

from __future__ import annotations

import pytest

from testbed.debian.packages import Unavailable, cache_folder
from testbed.prometheus import fetch_prometheus


@pytest.fixture(scope="session")
def prometheus() -> None:
    """Fetch it into the cache, where tests without a network find it."""
    try:
        fetch_prometheus(cache_folder("prometheus"), print)
    except Unavailable as shortage:
        pytest.skip(f"prometheus: {shortage}")
