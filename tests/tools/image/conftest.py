"""Shared by the tests of the image: the image, built once and kept; of what is locked, or, where the mirror
has moved on, of what it serves now, which a test of its own reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.debian.packages import PackagesUnavailable
from tools.image.build import Image, describe_image, find_or_build
from tools.image.debian import ARCHITECTURES
from tools.image.wheels import WheelsUnavailable

_FOLDER = "TEST_IMAGE_FOLDER"


_FIRST_BUILD_SECONDS = 900
"""Whoever asks first waits for some 80 MB of downloads, for both architectures, by a slow network, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called with the tests of all folders."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_FIRST_BUILD_SECONDS))


def build(architecture: str | None = None) -> Image:
    """Skips the test where there are no packages to build from."""
    try:
        return find_or_build(architecture)
    except (PackagesUnavailable, WheelsUnavailable) as error:
        pytest.skip(f"no image: {error}")


@pytest.fixture(scope="session", params=ARCHITECTURES)
def image(request: pytest.FixtureRequest) -> Image:
    """Of each architecture."""
    return build(request.param)


@pytest.fixture(scope="session")
def image_here() -> Image:
    """Of this machine's architecture; a private tree, which has no network, finds it with :func:`enter`."""
    image = build()
    os.environ[_FOLDER] = str(image.folder)
    return image


def image_inside() -> Image:
    """In the private tree of a test that uses ``image_here``."""
    return describe_image(Path(os.environ[_FOLDER]))
