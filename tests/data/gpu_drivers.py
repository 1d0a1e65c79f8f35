"""GPUs as the vendors' DRA drivers publish them in ResourceSlices of ``resource.k8s.io/v1``.

Names, types and conditions are facts from the drivers' public code and documentation, read in November 2026;
each function names its release. Sources:

- NVIDIA: kubernetes-sigs/dra-driver-nvidia-gpu (until February 2026 NVIDIA/k8s-dra-driver-gpu),
  ``cmd/gpu-kubelet-plugin/deviceinfo.go``, ``mig.go``, ``partitions.go`` and ``driver.go``.
- AMD: ROCm/k8s-gpu-dra-driver, ``cmd/gpu-kubeletplugin/deviceinfo.go`` and ``docs/driver-attributes.md``.
- Intel: intel/intel-resource-drivers-for-kubernetes, ``cmd/kubelet-gpu-plugin/node_state.go``.

Each has one pool for each node, with the node's name. NVIDIA's and Intel's driver publish the devices in
random order (that of a Go map). All three take the PCIe root from ``GetPCIeRootAttributeByPCIBusID`` of
``k8s.io/dynamic-resource-allocation/deviceattribute``, which fails below Hyper-V's VMBus
(kubernetes/kubernetes#134076): there they publish no root. Memory sizes are about those of ``nvidia-smi`` and
of the data sheets; versions of kernel drivers are examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec.structs import replace

from dranet.model import attributes as a
from dranet.model.device import Device
from dranet.model.facts import Host

JsonObject = dict[str, Any]


class Driver(StrEnum):
    """Names of the drivers, which are also the names of their classes of whole GPUs."""

    NVIDIA = "gpu.nvidia.com"
    AMD = "gpu.amd.com"
    INTEL = "gpu.intel.com"


COMPUTE_DOMAIN = "compute-domain.nvidia.com"
"""NVIDIA's driver of channels for NVLink between nodes."""


def driver_of(gpu: Device) -> Driver:
    """By the kernel's driver; Intel's stands in for displays of virtual machines."""
    vendors = {"nvidia": Driver.NVIDIA, "amdgpu": Driver.AMD}
    return vendors.get(str(gpu.attributes.get("dra.net/driver")), Driver.INTEL)


class _Product(NamedTuple):
    architecture: str
    compute_capability: str
    memory: str
    addressing: str = "HMM"
    """ATS where the processor has a coherent link to the GPU."""


_NVIDIA = {
    "NVIDIA A100-SXM4-40GB": _Product("Ampere", "8.0.0", "40Gi"),
    "NVIDIA H20": _Product("Hopper", "9.0.0", "97871Mi"),
    "NVIDIA H100 80GB HBM3": _Product("Hopper", "9.0.0", "81559Mi"),
    "NVIDIA B200": _Product("Blackwell", "10.0.0", "183359Mi"),
    "NVIDIA GB200": _Product("Blackwell", "10.0.0", "189471Mi", "ATS"),
    "NVIDIA GB300": _Product("Blackwell", "10.3.0", "284208Mi", "ATS"),
}


def nvidia_25_8(gpu: Device) -> JsonObject:
    """v25.8.1, and v25.3 with ``minor`` and ``index`` besides: an address of its own name, no NUMA node."""
    own = {"type": "gpu", "uuid": _uuid(gpu), "pcieBusID": gpu.pci_address}
    return _nvidia(gpu, f"gpu-{_minor(gpu)}", {**own, **_root(gpu)}, memory=_product(gpu).memory)


def nvidia_0_4(gpu: Device) -> JsonObject:
    """v25.12.0, v0.4.0 and v0.4.1: standard address and root, no NUMA node."""
    own = {"type": "gpu", "uuid": _uuid(gpu), "addressingMode": _product(gpu).addressing}
    return _nvidia(gpu, f"gpu-{_minor(gpu)}", {**own, **_place(gpu)}, memory=_product(gpu).memory)


def nvidia_0_5(gpu: Device) -> JsonObject:
    """v0.5.0: the standard NUMA node besides (#1165), one number, or see :func:`list_numa_nodes`."""
    return _with(nvidia_0_4(gpu), _numa(gpu))


def list_numa_nodes(device: JsonObject, near: Mapping[int, Sequence[int]]) -> JsonObject:
    """As with the feature gate DRAListTypeAttributes of NVIDIA's v0.5.0 (#1261), which is off by default.

    ``near``: node -> itself and the nearest nodes of its socket, as KEP-6072 has it.
    """
    name = a.STANDARD_NUMA_NODE.qualified
    own = device["attributes"].get(name)
    return device if own is None else _with(device, {name: {"ints": list(near[own["int"]])}})


class Mig(NamedTuple):
    """A MIG profile of the H100 with 80 GB, as ``nvidia-smi mig -lgip`` and ``-lgipp`` have it."""

    name: str
    id: int
    memory: str
    multiprocessors: int
    engines: int
    """Copy engines, decoders and JPEG engines: as many of each."""
    slices: int
    """Memory slices, of eight."""
    starts: tuple[int, ...]


MIG_1G = Mig("1g.10gb", 19, "9984Mi", 16, 1, 1, (0, 1, 2, 3, 4, 5, 6))
MIG_3G = Mig("3g.40gb", 9, "40448Mi", 60, 3, 4, (0, 4))


def nvidia_mig_0_4(gpu: Device, mig: Mig, start: int) -> JsonObject:
    """v25.12.0 to v0.4.1: a MIG device that exists (static MIG), with the address and the root of its GPU.

    The GPU itself is not published then. v25.8.1 has ``pcieBusID`` and another name for the device.
    """
    own = {
        "type": "mig",
        "uuid": f"MIG-{_uuid(gpu).removeprefix('GPU-')[:-3]}{mig.id:02d}{start}",
        "parentUUID": _uuid(gpu),
        "profile": mig.name,
        "addressingMode": _product(gpu).addressing,
    }
    slices = {f"memorySlice{number}": "1" for number in range(start, start + mig.slices)}
    return _nvidia(gpu, _mig_name(gpu, mig, start), {**own, **_place(gpu)}, **_mig_capacity(mig), **slices)


def nvidia_mig_0_5(gpu: Device, mig: Mig, start: int) -> JsonObject:
    """v0.5.0: a MIG device that exists, with the NUMA node of its GPU besides."""
    return _with(nvidia_mig_0_4(gpu, mig, start), _numa(gpu))


def nvidia_dynamic_mig(gpu: Device, profiles: Sequence[Mig] = (MIG_1G, MIG_3G)) -> list[JsonObject]:
    """v0.5.0 with its feature gate DynamicMIG: the GPU and each MIG device that may be made of it.

    They have no UUID of their own, and share the counters of :func:`publish_dynamic_mig`.
    """
    whole = {"memory": "81559Mi", "multiprocessors": "132", **_all_engines(7, 8, 1)}
    devices = [_consuming(nvidia_0_5(gpu), gpu, whole, range(8))]
    for mig in profiles:
        for start in mig.starts:
            device = nvidia_mig_0_5(gpu, mig, start)
            del device["attributes"]["uuid"]
            slices = range(start, start + mig.slices)
            devices.append(_consuming(device, gpu, _mig_capacity(mig), slices))
    return devices


def publish_dynamic_mig(gpus: Sequence[Device], node: str) -> list[JsonObject]:
    """As on Kubernetes 1.35 and later: a slice with the counters of all GPUs, and for each GPU one with its
    devices. On 1.34 the counters are in the slice of their GPU."""
    counters = [_counters(nvidia_dynamic_mig(gpu, ())[0]["consumesCounters"][0]) for gpu in gpus]
    slices = [build_slice(Driver.NVIDIA, node, []), *(_dynamic_slice(gpu, node) for gpu in gpus)]
    del slices[0]["spec"]["devices"]
    slices[0]["spec"]["sharedCounters"] = counters
    for number, entry in enumerate(slices):
        entry["metadata"]["name"] += f"-{number}"
        entry["spec"]["pool"]["resourceSliceCount"] = len(slices)
    return slices


def _dynamic_slice(gpu: Device, node: str) -> JsonObject:
    return build_slice(Driver.NVIDIA, node, nvidia_dynamic_mig(gpu))


def _counters(consumed: JsonObject) -> JsonObject:
    return {"name": consumed["counterSet"], "counters": consumed["counters"]}


def _consuming(device: JsonObject, gpu: Device, capacity: Mapping[str, str], slices: range) -> JsonObject:
    counters = {re.sub(r"([a-z])([A-Z])", r"\1-\2", name).lower(): value for name, value in capacity.items()}
    counters |= {f"memory-slice-{number}": "1" for number in slices}
    consumed = {"counterSet": f"gpu-{_minor(gpu)}-counter-set", "counters": _quantities(counters)}
    return {**device, "capacity": _quantities(capacity), "consumesCounters": [consumed]}


def _mig_name(gpu: Device, mig: Mig, start: int) -> str:
    return f"gpu-{_minor(gpu)}-mig-{mig.name.replace('.', '')}-{mig.id}-{start}"


def _mig_capacity(mig: Mig) -> dict[str, str]:
    engines = _all_engines(mig.engines, mig.engines, 0)
    return {"memory": mig.memory, "multiprocessors": str(mig.multiprocessors), **engines}


def _all_engines(engines: int, copy_engines: int, flow: int) -> dict[str, str]:
    return {
        "copyEngines": str(copy_engines),
        "decoders": str(engines),
        "encoders": "0",
        "jpegEngines": str(engines),
        "ofaEngines": str(flow),
    }


def _nvidia(gpu: Device, name: str, own: Mapping[str, str], **capacity: str) -> JsonObject:
    product = _product(gpu)
    common = {"productName": _model(gpu), "brand": "Nvidia", "architecture": product.architecture}
    versions = {
        "cudaComputeCapability": product.compute_capability,
        "driverVersion": "580.126.20",
        "cudaDriverVersion": "13.0.0",
    }
    return _device(name, _texts({**common, **own}) | _versions(versions), capacity)


def amd_0_1(gpu: Device) -> JsonObject:
    """v0.1.0 (2025): an address of its own name, no NUMA node."""
    card, render = _card(gpu)
    own = {"pciAddr": gpu.pci_address, "deviceID": "7066866330502360227", "family": "AI", **_root(gpu)}
    source = {"driverSrcVersion": "A27BF33B4586326D747C9FB", "partitionProfile": "spx_nps1"}
    numbers = {"cardIndex": {"int": card}, "renderIndex": {"int": render}}
    return _amd(gpu, card, render, {"type": "amdgpu", **own, **source}, numbers, 1)


def amd_1_0(gpu: Device) -> JsonObject:
    """v1.0.0 and v1.0.1: standard address and root, and ``gpu.amd.com/numaNode``. The standard NUMA node is
    asked for (ROCm/k8s-gpu-dra-driver#92)."""
    return _amd_1_0(gpu, _card(gpu), {"type": "amdgpu", "partitionProfile": "spx_nps1"}, 1)


def amd_partitions(gpu: Device, parts: int = 8, profile: str = "cpx_nps1") -> list[JsonObject]:
    """v1.0.0: the parts that a GPU was cut into beforehand, with its address, root and NUMA node. The GPU
    itself is not published then."""
    card, render = _card(gpu)
    own = {"type": "amdgpu-partition", "partitionProfile": profile}
    return [_amd_1_0(gpu, (card + part, render + part), own, parts) for part in range(parts)]


def _amd_1_0(gpu: Device, names: tuple[int, int], own: Mapping[str, str], parts: int) -> JsonObject:
    more = {"deviceID": f"0x{gpu.attributes['dra.net/pciDeviceId']}", "driverVersionFull": "6.12.12"}
    numa = {"numaNode": {"int": -1 if gpu.numa_node is None else gpu.numa_node}}
    return _amd(gpu, *names, {**own, **more, **_place(gpu)}, numa, parts)


def _amd(
    gpu: Device, card: int, render: int, own: Mapping[str, str], numbers: JsonObject, parts: int
) -> JsonObject:
    """``parts``: how many share the whole (MI300X)."""
    texts = {**own, "productName": _model(gpu).replace(" ", "_")}
    capacity = {"memory": f"{196592 // parts}Mi", "computeUnits": f"{304 // parts}"}
    capacity["simdUnits"] = f"{1216 // parts}"
    attributes = _texts(texts) | _versions({"driverVersion": "6.12.12"}) | numbers
    return _device(f"gpu-{card}-{render}", attributes, capacity)


def intel_0_9(gpu: Device) -> JsonObject:
    """gpu-v0.8.0 to gpu-v0.9.1: address and root of its own names; the root is the bus alone."""
    own = {"pciAddress": gpu.pci_address, "pciRoot": _bus_of_root(gpu)}
    return _intel(gpu, own, {"healthy": {"bool": True}})


def intel_0_11(gpu: Device) -> JsonObject:
    """gpu-v0.11.0, and gpu-v0.10 without ``type``: standard address and root besides, no NUMA node.

    Where the root is unknown, the standard attribute is there and empty.
    """
    own = {"type": "gpu", "health": "Healthy", "pciAddress": gpu.pci_address}
    root = {"pciRoot": _bus_of_root(gpu)} if gpu.pcie_root else {}
    standard = {a.STANDARD_PCI_BUS_ID.qualified: gpu.pci_address}
    standard[a.STANDARD_PCIE_ROOT.qualified] = gpu.pcie_root
    return _intel(gpu, {**own, **root, **standard}, {})


def _intel(gpu: Device, own: Mapping[str, str], more: JsonObject) -> JsonObject:
    pci_id = f"0x{gpu.attributes['dra.net/pciDeviceId']}"
    model = _model(gpu) or "Unknown"
    common = {"model": model, "family": model.split(" ")[0], "driver": "xe", "pciId": pci_id}
    name = re.sub("[:.]", "-", gpu.pci_address) + f"-{pci_id}"
    attributes = _texts({**common, **own}) | {"sriov": {"bool": True}} | more
    return _device(name, attributes, {"memory": "48Gi", "millicores": "1k"})


def _bus_of_root(gpu: Device) -> str:
    return gpu.pcie_root.rpartition(":")[2]


Shapes = Mapping[Driver, Callable[[Device], JsonObject]]
"""How each vendor's driver publishes a whole GPU."""

OWN_NAMES: Shapes = {Driver.NVIDIA: nvidia_25_8, Driver.AMD: amd_0_1, Driver.INTEL: intel_0_9}
"""The releases before the standard PCI address."""
NO_NUMA: Shapes = {Driver.NVIDIA: nvidia_0_4, Driver.AMD: amd_1_0, Driver.INTEL: intel_0_11}
"""The last releases before the standard NUMA node. AMD's has a name of its own for it."""
NEWEST: Shapes = {**NO_NUMA, Driver.NVIDIA: nvidia_0_5}


def publish_gpu(gpu: Device, shapes: Shapes) -> JsonObject:
    """A whole GPU as its vendor's driver publishes it."""
    return shapes[driver_of(gpu)](gpu)


def publish(gpus: Iterable[Device], host: Host, node: str, shapes: Shapes = NEWEST) -> list[JsonObject]:
    """The slices of a node on which each vendor's driver runs; one for each driver."""
    cards = [as_read(gpu, host) for gpu in gpus]
    drivers = dict.fromkeys(map(driver_of, cards))
    return [
        build_slice(driver, node, [publish_gpu(card, shapes) for card in cards if driver_of(card) is driver])
        for driver in drivers
    ]


def as_read(gpu: Device, host: Host) -> Device:
    """A GPU as the drivers see it: alone below a channel of Hyper-V's VMBus they find no root."""
    is_on_vmbus = host.product.startswith("Microsoft") and len(gpu.pci_path) == 1
    return replace(gpu, pcie_root="") if is_on_vmbus else gpu


def build_slice(driver: str, node: str, devices: Sequence[JsonObject]) -> JsonObject:
    """The only slice of a node's pool."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"driver": str(driver), "nodeName": node, "pool": pool, "devices": list(devices)},
    }


_SELECTORS = {
    "gpu.nvidia.com": ("gpu.nvidia.com", "gpu"),
    "mig.nvidia.com": ("gpu.nvidia.com", "mig"),
    "vfio.gpu.nvidia.com": ("gpu.nvidia.com", "vfio"),
    "gpu.amd.com": ("gpu.amd.com", ""),
    "gpu.intel.com": ("gpu.intel.com", ""),
    "compute-domain-default-channel.nvidia.com": (COMPUTE_DOMAIN, "channel"),
    "compute-domain-daemon.nvidia.com": (COMPUTE_DOMAIN, "daemon"),
}
"""Class: driver and type of its devices. A class without a type has all devices of the driver: also
partitions (AMD) and virtual functions (Intel)."""


def device_classes() -> list[JsonObject]:
    """The DeviceClasses that come with the charts (NVIDIA v0.5.0, AMD v1.0.0, Intel gpu-v0.11.0)."""
    return [_device_class(name, *selector) for name, selector in _SELECTORS.items()]


def _device_class(name: str, driver: str, kind: str) -> JsonObject:
    expression = f"device.driver == '{driver}'"
    if kind:
        expression += f" && device.attributes['{driver}'].type == '{kind}'"
    spec: JsonObject = {"selectors": [{"cel": {"expression": expression}}]}
    if name == Driver.NVIDIA:
        spec["extendedResourceName"] = "nvidia.com/gpu"
    if kind == "channel":
        spec["selectors"][0]["cel"]["expression"] += f" && device.attributes['{driver}'].id == 0"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def compute_domain_slice(node: str) -> JsonObject:
    """What :data:`COMPUTE_DOMAIN` publishes on each node."""
    return build_slice(COMPUTE_DOMAIN, node, compute_domain_devices())


def compute_domain_devices() -> list[JsonObject]:
    """The same two devices on each node, without any place.

    Source: NVIDIA v0.5.0, ``cmd/compute-domain-kubelet-plugin/deviceinfo.go`` and ``driver.go``.
    """
    kinds = ("channel", "daemon")
    return [_device(f"{kind}-0", {"type": {"string": kind}, "id": {"int": 0}}, {}) for kind in kinds]


def _device(name: str, attributes: JsonObject, capacity: Mapping[str, str]) -> JsonObject:
    """Sorted, as the API server returns it."""
    sized = {"capacity": _quantities(dict(sorted(capacity.items())))} if capacity else {}
    return {"name": name, "attributes": dict(sorted(attributes.items())), **sized}


def _with(device: JsonObject, more: JsonObject) -> JsonObject:
    return {**device, "attributes": dict(sorted({**device["attributes"], **more}.items()))}


def _quantities(values: Mapping[str, str]) -> JsonObject:
    return {name: {"value": value} for name, value in values.items()}


def _texts(values: Mapping[str, str]) -> JsonObject:
    return {name: {"string": value} for name, value in values.items()}


def _versions(values: Mapping[str, str]) -> JsonObject:
    return {name: {"version": value} for name, value in values.items()}


def _place(gpu: Device) -> dict[str, str]:
    return {a.STANDARD_PCI_BUS_ID.qualified: gpu.pci_address, **_root(gpu)}


def _root(gpu: Device) -> dict[str, str]:
    return {a.STANDARD_PCIE_ROOT.qualified: gpu.pcie_root} if gpu.pcie_root else {}


def _numa(gpu: Device) -> JsonObject:
    known = gpu.numa_node is not None
    return {a.STANDARD_NUMA_NODE.qualified: {"int": gpu.numa_node}} if known else {}


def _uuid(gpu: Device) -> str:
    return str(gpu.attributes.get("dra.net/gpuUUID", ""))


def _model(gpu: Device) -> str:
    return str(gpu.attributes.get("dra.net/gpuModel", ""))


def _product(gpu: Device) -> _Product:
    return _NVIDIA[_model(gpu)]


def _minor(gpu: Device) -> int:
    """Of ``/dev/nvidia0``, by which NVIDIA's driver calls the device."""
    return int(gpu.char_devices[0].path.removeprefix("/dev/nvidia"))


def _card(gpu: Device) -> tuple[int, int]:
    """Numbers of ``/dev/dri/cardN`` and ``renderDN``: the one follows from the other."""
    path = next((node.path for node in gpu.char_devices if "render" in node.path), "")
    render = int(path.rpartition("renderD")[2] or 128)
    return render - 128, render
