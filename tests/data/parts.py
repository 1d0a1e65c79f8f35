"""The PCI functions that the described machines are made of, one a line; names as in pci.ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A kind of PCI function. ``speed`` and ``width`` are both current and maximum."""

    class_code: int
    id: tuple[int, int]
    """Vendor and device."""
    subsystem: tuple[int, int] = (0, 0)
    driver: str = ""
    speed: str = ""
    width: int = 0
    total_vfs: int = 0
    firmware: str = ""
    board_id: str = ""

    @property
    def vendor_name(self) -> str:
        return _VENDORS.get(self.id[0], "")

    @property
    def device_name(self) -> str:
        """Empty for parts that are newer than the database of a machine may be."""
        return _DEVICES.get(self.id, "")


_GEN2, _GEN3, _GEN4 = "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe"
_GEN5, _GEN6 = "32.0 GT/s PCIe", "64.0 GT/s PCIe"
_CX7, _CX6 = "MT_0000000838", "MT_0000000223"

A100 = Part(0x030200, (0x10DE, 0x20B0), (0x10DE, 0x134F), "nvidia", _GEN4, 16)
H20 = Part(0x030200, (0x10DE, 0x2329), (0x10DE, 0x198B), "nvidia", _GEN5, 16)
H100 = Part(0x030200, (0x10DE, 0x2330), (0x10DE, 0x16C1), "nvidia", _GEN5, 16)
B200 = Part(0x030200, (0x10DE, 0x2901), (0x10DE, 0x1999), "nvidia", _GEN5, 16)
GB200 = Part(0x030200, (0x10DE, 0x2941), (0x10DE, 0x2046), "nvidia", _GEN6, 1)
GB300 = Part(0x030200, (0x10DE, 0x31C2), (0x10DE, 0x21F1), "nvidia", _GEN6, 1)
NVSWITCH = Part(0x068000, (0x10DE, 0x22A3), (0x10DE, 0x1796), "nvidia-nvswitch", _GEN4, 2)
MI300X = Part(0x120000, (0x1002, 0x74A1), (0x1002, 0x74A1), "amdgpu", _GEN5, 16)
CX6_IB = Part(0x020700, (0x15B3, 0x101B), (0x15B3, 0x0006), "mlx5_core", _GEN4, 16, 8, "20.37.1700", _CX6)
CX6_ETH = Part(0x020000, (0x15B3, 0x101B), (0x15B3, 0x0007), "mlx5_core", _GEN4, 16, 8, "20.37.1700", _CX6)
CX7_IB = Part(0x020700, (0x15B3, 0x1021), (0x15B3, 0x0041), "mlx5_core", _GEN5, 16, 16, "28.39.1002", _CX7)
CX7_ETH = Part(0x020000, (0x15B3, 0x1021), (0x15B3, 0x0023), "mlx5_core", _GEN5, 16, 16, "28.39.1002", _CX7)
CX8_ETH = Part(0x020000, (0x15B3, 0x1023), (0x15B3, 0x0028), "mlx5_core", _GEN6, 16, 16, "40.44.1036")
CX_VF_IB = Part(0x020700, (0x15B3, 0x101E), (0x15B3, 0x0041), "mlx5_core", _GEN5, 16, 0, "28.39.1002", _CX7)
CX_VF_ETH = Part(0x020000, (0x15B3, 0x101E), (0x15B3, 0x0016), "mlx5_core", "", 0, 0, "16.30.1284")
BF3 = Part(0x020000, (0x15B3, 0xA2DC), (0x15B3, 0x0011), "mlx5_core", _GEN5, 16, 16, "32.42.1000")
I210 = Part(0x020000, (0x8086, 0x1533), (0x8086, 0x1533), "igb", _GEN2, 1)
X550 = Part(0x020000, (0x8086, 0x1563), (0x8086, 0x001A), "ixgbe", _GEN3, 4, 63)
X710 = Part(0x020000, (0x8086, 0x1572), (0x8086, 0x0007), "i40e", _GEN3, 8, 64)
E810 = Part(0x020000, (0x8086, 0x159B), (0x8086, 0x0003), "ice", _GEN4, 8, 128)
E810_VF = Part(0x020000, (0x8086, 0x1889), (0x8086, 0x0000), "iavf")
ENA = Part(0x020000, (0x1D0F, 0xEC20), (0x1D0F, 0xEC20), "ena", _GEN4, 8)
EFA = Part(0x020000, (0x1D0F, 0xEFA1), (0x1D0F, 0xEFA1), "efa", _GEN4, 8)
MANA_VF = Part(0x020000, (0x1414, 0x00BA), (0x1414, 0x00B9), "mana")
GVNIC = Part(0x020000, (0x1AE0, 0x0042), (0x1AE0, 0x0058), "gve")
ERDMA = Part(0x00FF00, (0x1DED, 0x107F), (0x1DED, 0x0001), "erdma")
VIRTIO = Part(0x020000, (0x1AF4, 0x1000), (0x1AF4, 0x0001), "virtio-pci")
BMC_VGA = Part(0x030000, (0x1A03, 0x2000), (0x1A03, 0x2000), "ast", _GEN2, 1)

_VENDORS = {
    0x1002: "Advanced Micro Devices, Inc. [AMD/ATI]",
    0x10DE: "NVIDIA Corporation",
    0x1414: "Microsoft Corporation",
    0x15B3: "Mellanox Technologies",
    0x1A03: "ASPEED Technology, Inc.",
    0x1AE0: "Google, Inc.",
    0x1AF4: "Red Hat, Inc.",
    0x1D0F: "Amazon.com, Inc.",
    0x1DED: "Alibaba (China) Co., Ltd.",
    0x8086: "Intel Corporation",
}
_DEVICES = {
    (0x1002, 0x74A1): "Aqua Vanjaram [Instinct MI300X]",
    (0x10DE, 0x20B0): "GA100 [A100 SXM4 40GB]",
    (0x10DE, 0x2329): "GH100 [H20]",
    (0x10DE, 0x2330): "GH100 [H100 SXM5 80GB]",
    (0x15B3, 0x101B): "MT28908 Family [ConnectX-6]",
    (0x15B3, 0x101E): "ConnectX Family mlx5Gen Virtual Function",
    (0x15B3, 0x1021): "MT2910 Family [ConnectX-7]",
    (0x15B3, 0x1023): "CX8 Family [ConnectX-8]",
    (0x15B3, 0xA2DC): "MT43244 BlueField-3 integrated ConnectX-7 network controller",
    (0x1A03, 0x2000): "ASPEED Graphics Family",
    (0x1AE0, 0x0042): "Compute Engine Virtual Ethernet [gVNIC]",
    (0x1AF4, 0x1000): "Virtio network device",
    (0x1D0F, 0xEC20): "Elastic Network Adapter (ENA)",
    (0x1D0F, 0xEFA1): "Elastic Fabric Adapter (EFA)",
    (0x8086, 0x1533): "I210 Gigabit Network Connection",
    (0x8086, 0x1563): "Ethernet Controller X550",
    (0x8086, 0x1572): "Ethernet Controller X710 for 10GbE SFP+",
    (0x8086, 0x159B): "Ethernet Controller E810-XXV for SFP",
    (0x8086, 0x1889): "Ethernet Adaptive Virtual Function",
}
