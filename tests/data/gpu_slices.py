"""Files with the slices that the vendor's driver would publish on the machine of a layout.

NVIDIA's driver is the last release without a NUMA node, which leaves most to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dranet.model.device import Device
from dranet.view.node_view import to_yaml
from tests.data import gpu_drivers
from tests.data.gpu_drivers import MIG_1G, MIG_3G, Driver, JsonObject
from tests.data.layouts import FOLDER, LAYOUTS, read_gpus, read_layout

WHOLE, MIG = "gpu-slices.yaml", "gpu-slices-mig.yaml"

_RELEASES = {Driver.NVIDIA: "NVIDIA's DRA driver v0.4.1", Driver.AMD: "AMD's DRA driver v1.0.0"}


def has_vendors_gpus(layout: str) -> bool:
    """Whether a vendor's driver would publish all of its GPUs."""
    drivers = {gpu_drivers.driver_of(gpu) for gpu in read_gpus(layout)}
    return bool(drivers) and drivers <= _RELEASES.keys()


FILES: Mapping[str, Sequence[str]] = {
    **{layout: (WHOLE,) for layout in LAYOUTS if has_vendors_gpus(layout)},
    "dgx-h100": (WHOLE, MIG),
}
"""Layout -> its files."""


def slices_file(layout: str, name: str) -> Path:
    return FOLDER / layout / name


def slices_text(layout: str, name: str) -> str:
    """YAML, below a comment that says which release has this shape."""
    slices = _SHAPES[name](read_gpus(layout), layout)
    release = _RELEASES[Driver(slices[0]["spec"]["driver"])]
    return f"# GPUs as {release} publishes them. Written by python -m tests.data.\n{to_yaml(slices)}\n"


def _whole(gpus: Sequence[Device], layout: str) -> list[JsonObject]:
    host = read_layout(layout).facts.host
    return gpu_drivers.publish(gpus, host, host.name, gpu_drivers.NO_NUMA)


def _mig(gpus: Sequence[Device], layout: str) -> list[JsonObject]:
    """Four whole GPUs, two in seven parts each and two in halves."""
    whole = [gpu_drivers.nvidia_0_4(gpu) for gpu in gpus[:4]]
    cuts = [(gpu, mig) for gpu, mig in zip(gpus[4:], (MIG_1G, MIG_1G, MIG_3G, MIG_3G), strict=True)]
    parts = [gpu_drivers.nvidia_mig_0_4(gpu, mig, start) for gpu, mig in cuts for start in mig.starts]
    return [gpu_drivers.build_slice(Driver.NVIDIA, read_layout(layout).facts.host.name, [*whole, *parts])]


_SHAPES: Mapping[str, Callable[[Sequence[Device], str], list[JsonObject]]] = {WHOLE: _whole, MIG: _mig}
