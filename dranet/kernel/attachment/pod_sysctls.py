"""Sysctls of a pod's namespace, several in one visit, with an undo."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from dranet.errors import KernelError
from dranet.kernel.attachment.locate import Side
from dranet.kernel.attachment.undo import UndoStack
from dranet.kernel.sysctl import write_sysctl


def write_pod_sysctls(pod: Side, device: str, wanted: Iterable[tuple[str, str]], undo: UndoStack) -> None:
    """Write values by path, in order.

    Raises:
        KernelError: the kernel refused one; those before it are written.
    """
    before: list[tuple[str, str]] = []

    def write() -> None:
        for path, value in wanted:
            was = write_sysctl(path, value)
            before.append((path, was))

    undo.later(device, partial(_write_back, pod, before))
    pod.run(write)


def _write_back(pod: Side, before: Sequence[tuple[str, str]]) -> list[str]:
    """An empty value is one that the kernel did not tell; it cannot be put back."""
    problems: list[str] = []

    def write() -> None:
        for path, value in reversed(before):
            try:
                if value:
                    write_sysctl(path, value)
            except KernelError as error:
                problems.append(error.message)

    pod.run(write)
    return problems
