"""Decoding into structs in several threads at once, as the driver does when it starts."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from dranet.decoding import convert, decode

_RACE = """
import sys
import threading
import types
import msgspec
from dranet.decoding import convert, decode

SOURCE = '''
import msgspec

class Inner(msgspec.Struct):
    number: int
    text: str
    numbers: "list[int]" = []

class Outer(msgspec.Struct):
    inner: Inner
    others: "dict[str, Inner]" = {}
'''
TEXT = '{"inner": {"number": 1, "text": "a"}, "others": {"b": {"number": 2, "text": "c", "numbers": [3]}}}'

def use(barrier, kind, number):
    barrier.wait()
    found = decode(TEXT, kind) if number % 2 else convert(msgspec.json.decode(TEXT), kind)
    assert found.others["b"].numbers == [3]

sys.setswitchinterval(1e-6)
for turn in range(100):
    module = sys.modules[f"turn_{turn}"] = types.ModuleType(f"turn_{turn}")
    exec(SOURCE, module.__dict__)
    barrier = threading.Barrier(6)
    threads = [threading.Thread(target=use, args=(barrier, module.Outer, number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


class Size(msgspec.Struct):
    width: int


@pytest.mark.process
def test_threads_that_use_a_class_for_the_first_time_do_not_crash() -> None:
    """With msgspec's own functions, the process ends with SIGSEGV in one of the first turns."""
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_and_plain_values_become_structs() -> None:
    assert decode(b'{"width": 3}', Size) == convert({"width": 3}, Size) == Size(3)
    assert decode("[1]", list) == [1]


@pytest.mark.parametrize("text", ['{"width": "three"}', "{}", '{"width": 3', "", "[" * 100_000])
def test_what_is_no_such_struct_is_an_error_that_callers_expect(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode(text, Size)
