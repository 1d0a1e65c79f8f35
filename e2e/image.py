"""The driver's image of this checkout, for lanes that have no registry: built without a container engine."""

from __future__ import annotations

from pathlib import Path

from e2e.access import LaneUnavailable
from tools.image.base import host_architecture
from tools.image.build import build_image
from tools.image.debian import ImageError

NAME = "localhost/dranet-e2e/dranet:e2e"


def build_archive(folder: Path) -> Path:
    """Its archive; ``folder`` is replaced.

    Raises:
        LaneUnavailable: it cannot be built.
        PackagesUnavailable: its Debian packages cannot be had.
    """
    try:
        return build_image(host_architecture(), folder, name=NAME).archive
    except ImageError as error:
        raise LaneUnavailable(f"the driver's image: {error}") from error
