"""Settings of glibc's allocator for a program whose threads share one lock anyway.

By default threads get heaps of their own, up to eight for each CPU core, so that none waits for another; ours
take turns at Python's lock. And what is freed below something that lives on stays with the process until
it is trimmed: a scan of a thousand links leaves a megabyte of holes.

Another C library (musl) knows none of this, and then nothing is done. See ``mallopt(3)``, ``malloc_trim(3)``.
"""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None)

_M_ARENA_MAX = -8
"""``malloc.h``"""


def use_one_heap() -> None:
    """For threads that are yet to be started; to be called before there are any."""
    set_option = getattr(_libc, "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return free memory to the kernel: a third of a millisecond after a scan of a thousand links."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
