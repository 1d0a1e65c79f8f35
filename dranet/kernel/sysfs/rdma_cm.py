"""The defaults of ``rdma_cm`` for an RDMA device: the version of RoCE, and the type of service, of its ports.

An administrator sets them in configfs, in a folder made for it (``rdma_cm/mlx5_0/ports/1``). They belong to
the connection manager's client of the device, which is removed and added again when the device changes its
network namespace: what was set is lost then. The folder is a view, by name and of any namespace, and may be
created for a read (``drivers/infiniband/core/cma_configfs.c``). Without configfs or the folder ``rdma_cm``
the settings do not exist.

configfs is mounted on a descriptor, as ``namespaces.sysfs_mount`` does with sysfs: containers do not have it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from dranet.errors import KernelError
from dranet.kernel.namespaces.sysfs_mount import open_configfs
from dranet.kernel.refusals import report_unreadable

_FILES = ("default_roce_mode", "default_roce_tos")
_OPERATION = "rdma-cm"


def read_cm_defaults(rdma_device: str) -> Mapping[str, str]:
    """What each port of a device has, by ``1/default_roce_mode``; empty if the kernel does not report it."""
    try:
        with _open_folder(rdma_device) as ports:
            return dict(_iter_files(ports)) if ports is not None else {}
    except (OSError, KernelError) as error:
        if error.errno != errno.ENODEV:  # rdma_cm does not serve the device (EFA)
            report_unreadable(rdma_device, "rdma_cm", _explain(error, rdma_device, "read"))
        return {}


def restore_cm_defaults(rdma_device: str, wanted: Mapping[str, str]) -> list[str]:
    """Write what differs; returns one line for each that could not be written."""
    if not wanted:
        return []
    try:
        with _open_folder(rdma_device) as ports:
            if ports is None:
                return [f"rdma_cm of {rdma_device}: its folder in configfs is gone"]
            return list(_iter_refusals(ports, rdma_device, wanted))
    except (OSError, KernelError) as error:
        return [_explain(error, rdma_device, "restore").message]


def _iter_files(ports: Path) -> Iterator[tuple[str, str]]:
    """A port of InfiniBand has neither a mode nor a type of service."""
    for port in sorted(ports.iterdir()):
        for file in _FILES:
            with suppress(OSError):
                yield f"{port.name}/{file}", Path(port, file).read_text().strip()


def _iter_refusals(ports: Path, rdma_device: str, wanted: Mapping[str, str]) -> Iterator[str]:
    found = dict(_iter_files(ports))
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        try:
            Path(ports, name).write_text(value)
        except OSError as error:
            what = f"rdma_cm {name} of {rdma_device}"
            yield f"{what}: wanted {value}, found {found.get(name, 'nothing')}: {error.strerror}"


@contextmanager
def _open_folder(rdma_device: str) -> Iterator[Path | None]:
    """The ports of a device; the folder is taken away again where it was not there.

    Raises:
        OSError: the folder could not be made.
        KernelError: configfs could not be mounted.
    """
    with open_configfs() as root:
        if root is None or not Path(root, "rdma_cm").is_dir():
            yield None
            return
        folder = Path(root, "rdma_cm", rdma_device)
        was_there = folder.is_dir()
        folder.mkdir(exist_ok=True)
        try:
            yield folder / "ports"
        finally:
            if not was_there:
                with suppress(OSError):
                    folder.rmdir()


def _explain(error: OSError | KernelError, rdma_device: str, what: str) -> KernelError:
    if isinstance(error, KernelError):
        return error
    number = error.errno or errno.EIO
    text = f"{what} rdma_cm's defaults of {rdma_device}: {error.strerror}"
    return KernelError(text, errno=number, operation=_OPERATION)
