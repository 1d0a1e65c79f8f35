"""Make what the machine boots from the unpacked packages, once, and keep it in the cache.

Runs make and gcc on our own test module (``modules/``), and kmod and zstd of the packages. The result is
keyed by everything it is made of, so that a changed module or list is never taken for the old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from testbed.machine.fetch import Cause, MachineUnavailable, Packages, Report
from testbed.machine.guest import BOOT_MODULES, INIT, MODULES
from testbed.machine.kernel import BadImage, Modules, find_payload, initramfs_nodes, pack_cpio

HELPER_MODULES = ("vnode_hca", "vnode_ipoib", "vnode_nic", "vnode_slow")

_SOURCES = Path(__file__).parent / "modules"

_MAKE_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Image:
    """What one boot needs besides the packages; ``folder`` is in the cache."""

    folder: Path

    @property
    def vmlinux(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs.cpio"

    @property
    def layer(self) -> Path:
        """A layer of the guest's root: ``usr/lib/modules``."""
        return self.folder / "layer"


def make_image(packages: Packages, report: Report) -> Image:
    """Return the image for these packages from the cache, or make it (10 s). Blocks.

    Raises:
        MachineUnavailable: the test module does not compile, or the kernel is not as we know it.
    """
    folder = packages.folder / f"image-{_digest()}"
    if folder.is_dir():
        return Image(folder)
    with tempfile.TemporaryDirectory(prefix="image-part-", dir=packages.folder) as temporary:
        stage = Path(temporary) / "image"
        stage.mkdir()
        try:
            report("compiling the test module")
            helpers = _compile_helpers(packages, Path(temporary) / "build")
            report("making the layer of modules, the initramfs and vmlinux")
            _write_modules(packages, helpers, stage)
            _write_vmlinux(packages, stage)
        except BadImage as error:
            raise MachineUnavailable(Cause.BUILD_FAILED, str(error)) from error
        # Another process may have won the race; its result is as good.
        with contextlib.suppress(OSError):
            stage.rename(folder)
    return Image(folder)


def _digest() -> str:
    parts = [INIT, *BOOT_MODULES, *MODULES, *(path.read_text() for path in sorted(_SOURCES.iterdir()))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _compile_helpers(packages: Packages, build: Path) -> list[Path]:
    """Our modules, compiled against the kernel's headers, without debug data."""
    shutil.copytree(_SOURCES, build)
    headers = packages.kernel_tree / f"usr/src/linux-headers-{packages.kernel}"
    makefile = build / "headers.mk"
    text = (headers / "Makefile").read_text()
    makefile.write_text(text.replace("/usr/src/", f"{packages.kernel_tree}/usr/src/"))
    _run(
        packages,
        "make", "-s", "-C", str(headers), "-f", str(makefile), f"M={build}", "CC=gcc",
        "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules",
    )  # fmt: skip
    found = [build / f"{name}.ko" for name in HELPER_MODULES]
    for path in found:
        _run(packages, "strip", "-g", str(path))
    return found


def _write_modules(packages: Packages, helpers: list[Path], stage: Path) -> None:
    source = packages.kernel_tree / "usr/lib/modules" / packages.kernel
    modules = Modules(source)
    layer = stage / "layer"
    target = layer / "usr/lib/modules" / packages.kernel
    for name in modules.closure((*BOOT_MODULES, *MODULES)):
        relative, content = modules.read(name)
        place = target / relative
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    (target / "extra").mkdir()
    for helper in helpers:
        shutil.copy(helper, target / "extra")
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(source / name, target)
    (layer / "lib").symlink_to("usr/lib")
    _run(packages, "depmod", "-b", str(layer), packages.kernel)
    boot = {name: modules.read(name)[1] for name in modules.closure(BOOT_MODULES)}
    busybox = (packages.prefix / "usr/bin/busybox").read_bytes()
    (stage / "initramfs.cpio").write_bytes(pack_cpio(initramfs_nodes(busybox, INIT, boot)))


def _write_vmlinux(packages: Packages, stage: Path) -> None:
    payload, size = find_payload((packages.kernel_tree / f"boot/vmlinuz-{packages.kernel}").read_bytes())
    compressed, vmlinux = stage / "vmlinux.zst", stage / "vmlinux"
    compressed.write_bytes(payload)
    _run(packages, "zstd", "-q", "-d", str(compressed), "-o", str(vmlinux))
    compressed.unlink()
    if vmlinux.stat().st_size != size:
        raise BadImage(f"vmlinux has {vmlinux.stat().st_size} bytes instead of {size}")


def _run(packages: Packages, *command: str) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            env=packages.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MAKE_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineUnavailable(Cause.BUILD_FAILED, f"{command[0]}: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise MachineUnavailable(Cause.BUILD_FAILED, f"{command[0]}: {lines[0]}")
