"""The defaults of rdma_cm in a folder of the test; ``tests/machine/test_moves.py`` has a kernel's."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dranet.errors import KernelError
from dranet.kernel.netlink import rdma
from dranet.kernel.netlink.rdma import read_cm_defaults, restore_cm_defaults

DEFAULTS = {"1/default_roce_mode": "RoCE v2", "1/default_roce_tos": "0"}


@pytest.fixture
def configfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One in which an administrator has made the folder of mlx5_0."""

    @contextmanager
    def mounted() -> Iterator[Path]:
        yield tmp_path

    monkeypatch.setattr(rdma, "open_configfs", mounted)
    for name, value in DEFAULTS.items():
        file = tmp_path / "rdma_cm/mlx5_0/ports" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    return tmp_path


def test_only_what_differs_is_written(configfs: Path) -> None:
    assert read_cm_defaults("mlx5_0") == DEFAULTS
    ports = configfs / "rdma_cm/mlx5_0/ports/1"
    (ports / "default_roce_tos").write_text("9\n")
    (ports / "default_roce_mode").chmod(0o400)
    assert restore_cm_defaults("mlx5_0", DEFAULTS) == []
    assert (ports / "default_roce_tos").read_text() == "0"
    assert (ports / "default_roce_mode").read_text() == "RoCE v2\n", "as it was"


def test_without_configfs_or_the_folder_of_rdma_cm_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for root in (None, tmp_path):

        @contextmanager
        def mounted(root: Path | None = root) -> Iterator[Path | None]:
            yield root

        monkeypatch.setattr(rdma, "open_configfs", mounted)
        assert read_cm_defaults("mlx5_0") == {}
        assert restore_cm_defaults("mlx5_0", {}) == []
        assert restore_cm_defaults("mlx5_0", DEFAULTS) == [
            "rdma_cm of mlx5_0: its folder in configfs is gone"
        ]


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EPERM, errno.EINVAL])
def test_what_cannot_be_looked_at_fails_no_prepare(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise KernelError("mount a file system of the kernel: no", errno=number)

    monkeypatch.setattr(rdma, "open_configfs", refuse)
    assert read_cm_defaults("mlx5_0") == {}
    assert restore_cm_defaults("mlx5_0", DEFAULTS) == ["mount a file system of the kernel: no"]
