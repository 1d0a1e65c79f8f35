"""Threads share one heap, and what is free in the midst of it goes back to the kernel.

Each is shown in a process of its own.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc's allocator")

_COUNT_HEAPS = """
import sys, threading
from dranet.driver import executor

if "one" in sys.argv:
    executor.use_one_heap()
done, kept = threading.Barrier(5), []

def work():
    kept.append([bytes(1000 + n) for n in range(100)])
    done.wait(10)
    done.wait(10)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
done.wait(10)
heap_bytes = 64 << 20  # of a thread's heap, which starts at a multiple of it (arena.c: HEAP_MAX_SIZE)
maps = [line.split()[:2] for line in open("/proc/self/maps")]
spans = [(*(int(end, 16) for end in span.split("-")), rights) for span, rights in maps]
print(sum(  # what is used of it, then what it is to grow into: a stack may start at such a place by chance
    (start % heap_bytes, used, free, unused) == (0, "rw-p", end, "---p") and free_end - start >= heap_bytes
    for (start, end, used), (free, free_end, unused) in zip(spans, spans[1:])
))
done.wait(10)
"""
_LEAVE_HOLES = """
import re
from dranet.driver import executor

def read_anonymous_mb():
    return int(re.search(r"Anonymous: +(\\d+)", open("/proc/self/smaps_rollup").read())[1]) / 1024

blocks = [bytes(2000) for _ in range(20_000)]
pins = blocks[::500] + blocks[-1:]
del blocks
full = read_anonymous_mb()
executor.trim()
print(int(full - read_anonymous_mb()), len(pins))
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.mark.process
def test_threads_have_no_heaps_of_their_own_when_told_so() -> None:
    assert int(run(_COUNT_HEAPS)) > 1
    assert int(run(_COUNT_HEAPS, "one")) == 0


@pytest.mark.process
def test_free_memory_below_what_lives_on_goes_back_to_the_kernel() -> None:
    given_back, _ = map(int, run(_LEAVE_HOLES).split())
    assert given_back > 20
