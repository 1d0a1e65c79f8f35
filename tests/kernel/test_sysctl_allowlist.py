"""Each setting that a claim may write for its pod is the pod's alone: tried on the running kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dranet.model.parameters.values import NAMESPACE_WIDE, find_refusal, is_per_interface
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel

ROOT = Path("/proc/sys/net")  # of the namespace of the thread that opens it


def list_allowed() -> list[str]:
    """Paths of what the kernel of this machine has of the namespace-wide settings."""
    found: list[str] = []
    for folder, _, files in os.walk(ROOT):
        for file in files:
            path = Path(folder, file).relative_to(ROOT)
            name = ".".join(("net", *path.parts))
            if not find_refusal(name) and not is_per_interface(name):
                found.append(str(path))
    return sorted(found)


def read(path: str) -> str:
    return (ROOT / path).read_text().strip()


def candidates(value: str) -> Iterator[str]:
    """Other values, one of which each setting takes."""
    numbers = value.split()
    for change in (1, -1, 1000):
        with suppress(ValueError):
            yield " ".join(str(int(number) + change) for number in numbers)
    with suppress(ValueError):
        yield "\t".join([*numbers[:-1], str(int(numbers[-1]) - 1)]) if numbers else "4000"
    yield from ("0", "1", "2", "5000-5001")


def change(path: str) -> str:
    """Write another value; returns it as the kernel tells it, empty where it took none."""
    before = read(path)
    for value in candidates(before):
        with suppress(OSError):
            (ROOT / path).write_text(value)
        if read(path) != before:
            return read(path)
    return ""


def test_a_write_in_the_pod_changes_nothing_elsewhere(make_namespace: Callable[..., Namespace]) -> None:
    node, pod = make_namespace(), make_namespace()
    paths = pod.run(list_allowed)
    assert len(paths) > 60
    before = node.run(lambda: {path: read(path) for path in paths})

    changed = {path: pod.run(partial(change, path)) for path in paths}

    assert [path for path, value in changed.items() if not value] == []
    assert node.run(lambda: {path: read(path) for path in paths}) == before


def test_every_name_on_the_list_is_one_that_some_kernel_has(make_namespace: Callable[..., Namespace]) -> None:
    """A misspelt name would be allowed and never work. All of this list are in Linux 6.18."""
    names = {"net." + path.replace("/", ".") for path in make_namespace().run(list_allowed)}
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (6, 18):
        pytest.skip(f"Linux {release[0]}.{release[1]} may lack some of them")
    listed = [name for group in NAMESPACE_WIDE for name in group.names if "*" not in name]

    assert [name for name in listed if name not in names] == []
