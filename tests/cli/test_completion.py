"""Completion as people have it: each shell, started with the script that ``dranet completion`` prints."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.documents.kubectl import find_kubectl

pytestmark = pytest.mark.process

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "TERM": "xterm",
    "LC_ALL": "C.UTF-8",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}
SECONDS = 60.0
TO_THE_START, TO_THE_END = "\x01", "\x05"

CASES = [
    (("dranet", "va"), {"validate"}),
    (("dranet", "claim", ""), {"new"}),
    (("dranet", "topology", "--outp"), {"--output", "--output-file"}),
    (("dranet", "topology", "-o", "ma"), {"matrix"}),
    (("dranet", "completion", ""), {"bash", "zsh", "fish"}),
    (("dranet", "explain", ""), {"claim", "pod", "resourceclaimtemplate"}),
    (("dranet", "explain", "pod", ""), set()),
    (("dranet", "explain", "pod", "trainer", "-n", ""), set()),
    (("dranet", "validate", "--st"), {"--strict"}),
    (("dranet", "claim", "new", "--st"), set()),
]


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(run([BIN / "dranet", "completion", shell]))
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fish makes folders in it."""
    monkeypatch.setitem(ENVIRONMENT, "HOME", str(tmp_path))


def run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT, check=True
    )
    return done.stdout


@needs("bash")
@pytest.mark.parametrize(("words", "wanted"), CASES)
def test_bash(scripts: Path, words: tuple[str, ...], wanted: set[str]) -> None:
    line = " ".join(words)
    code = (
        f"source {scripts / 'bash'}; complete -p dranet kubectl-dranet >&2; "
        f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_TYPE=9; _python_argcomplete dranet; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    assert {word.strip() for word in run(["bash", "--norc", "-c", code]).splitlines()} - {""} == wanted


@needs("bash")
def test_bash_adds_no_files_where_nothing_is_offered(scripts: Path) -> None:
    options = run(["bash", "--norc", "-c", f"source {scripts / 'bash'}; complete -p dranet"]).split(" -F ")[0]
    assert options == "complete -o bashdefault -o nospace"


@needs("fish")
@pytest.mark.parametrize(("words", "wanted"), CASES)
def test_fish(scripts: Path, words: tuple[str, ...], wanted: set[str]) -> None:
    code = f"source {scripts / 'fish'}; complete -C '{' '.join(words)}'"
    shown = run(["fish", "--no-config", "-c", code])
    assert {line.partition("\t")[0] for line in shown.splitlines()} == wanted


@needs("zsh")
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("dranet vali", "dranet validate"),
        ("dranet doctor --fail", "dranet doctor --fail-on"),
        ("dranet explain po", "dranet explain pod"),
    ],
)
def test_zsh(scripts: Path, typed: str, wanted: str) -> None:
    """Its completion works in its line editor alone, so it gets a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], ENVIRONMENT)
    try:
        start = f"autoload -Uz compinit && compinit -u -D && source {scripts / 'zsh'} && PS1=go'> '\n"
        os.write(terminal, start.encode())
        read_until(terminal, "go> ")
        os.write(terminal, f"{typed}\t{TO_THE_START}echo 'X{TO_THE_END}Y'\n".encode())
        read_until(terminal, f"X{wanted}")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, wanted: str) -> None:
    shown, deadline = "", time.monotonic() + SECONDS
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"{wanted!r} did not come: {shown!r}"
        shown += os.read(terminal, 65536).decode(errors="replace")


@pytest.mark.parametrize(("words", "wanted"), CASES)
def test_kubectl_gets_the_words_and_what_to_do_with_them(words: tuple[str, ...], wanted: set[str]) -> None:
    *lines, directive = run([BIN / "kubectl_complete-dranet", *words[1:]]).splitlines()
    assert {line.partition("\t")[0].strip() for line in lines} == wanted
    assert directive == ":4"


def test_kubectl_itself_runs_the_plugin_and_completes_it() -> None:
    kubectl = find_kubectl()
    assert run([kubectl, "dranet", "topology", "--help"]).startswith("usage: kubectl dranet topology ")
    *lines, directive = run([kubectl, "__complete", "dranet", "topology", "--outp"]).splitlines()
    assert [line.partition("\t")[0] for line in lines] == ["--output", "--output-file"]
    assert directive == ":4"


def test_files_are_offered_where_a_file_is_meant(tmp_path: Path) -> None:
    (tmp_path / "node.json").touch()
    for option, wanted in (("-f", True), ("-o", False)):
        shown = run([BIN / "kubectl_complete-dranet", "topology", option, f"{tmp_path}/no"])
        assert (f"{tmp_path}/node.json" in shown) is wanted


def test_only_the_typed_command_is_loaded() -> None:
    """A TAB that takes a second is pressed once."""
    environment = ENVIRONMENT | {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": "dranet topo",
        "COMP_POINT": "11",
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    code = "exec 8>&1; python -X importtime -m dranet"
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=SECONDS, env=environment
    )
    assert done.stdout.strip() == "topology"
    assert "argcomplete" in done.stderr
    assert "dranet.cli.topology" not in done.stderr
    assert "dranet.settings" not in done.stderr
