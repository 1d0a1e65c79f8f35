"""``python -m tests.fuzz [--seconds N] [TARGET...]``: run targets in turn, each for its share of the time.

Exit code 1 when a target found something. The input stays in a file whose name is printed, and
``python -m tests.fuzz TARGET --input FILE`` runs the target on it again.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz import INSTRUMENTED, NAMES

FOUND = Path(".cache/fuzz")
"""Inputs that broke something, and the corpus of each target, kept between runs."""
LARGEST_BYTES = 8192
SEEDS = 32
"""A property test reads its choices off the input, and one that is too short is no example at all."""
_SLOWEST_SECONDS = 10
"""An input that takes longer counts as a hang."""


def main() -> int:
    options = _parser().parse_args()
    names = options.target or NAMES
    if options.input:
        return _repeat(names, options.input)
    if options.inside:
        return _fuzz(names[0], options.seconds)
    if importlib.util.find_spec("atheris") is None:
        print("coverage-guided fuzzing is skipped: atheris has no wheel for this machine")
        return 0
    share = max(1, options.seconds // len(names))
    codes = [_run(name, share) for name in names]
    return int(any(codes))


def _run(name: str, seconds: int) -> int:
    """One target in a process of its own; tells how much it tried, and everything if it found something."""
    command = [sys.executable, "-m", "tests.fuzz", "--inside", "--seconds", str(seconds), name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout)
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stdout))
    tried, kept = stats.get("number_of_executed_units", "?"), stats.get("new_units_added", "?")
    verdict = "FOUND SOMETHING" if done.returncode else "nothing found"
    print(f"{name}: {tried} inputs in {seconds} s, {kept} of them reached new code: {verdict}", flush=True)
    return done.returncode


def _fuzz(name: str, seconds: int) -> int:
    """Never returns: libFuzzer ends the process."""
    import atheris

    corpus = FOUND / name
    _seed(corpus)
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.fuzz.targets import TARGETS
    limits = (f"-max_total_time={seconds}", f"-timeout={_SLOWEST_SECONDS}", "-rss_limit_mb=4096")
    sizes = (f"-max_len={LARGEST_BYTES}", "-len_control=0")
    output = ("-print_final_stats=1", f"-artifact_prefix={FOUND}/{name}-")
    atheris.Setup([name, *limits, *sizes, *output, str(corpus)], TARGETS[name])
    atheris.Fuzz()
    return 0


def _seed(corpus: Path) -> None:
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(SEEDS):
        source = random.Random(number)
        size = source.randrange(1, LARGEST_BYTES)
        (corpus / f"seed-{number}").write_bytes(source.randbytes(size))


def _repeat(names: list[str], file: Path) -> int:
    from tests.fuzz.targets import TARGETS

    for name in names:
        TARGETS[name](file.read_bytes())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", choices=[*NAMES, []], help="default: all of them")
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--input", type=Path, help="run the targets once, on this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
