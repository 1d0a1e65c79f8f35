"""``dranet ready``, the readiness probe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dranet.cli.main import main


def test_it_tells_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ready"
    assert main(["ready", str(file)]) == 1
    assert f"not ready: {file} does not exist" in capsys.readouterr().err
    file.touch()
    assert main(["ready", str(file)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.process
def test_it_loads_little() -> None:
    """The kubelet starts it every few seconds on each node."""
    code = "import sys; from dranet.cli.main import main; main(['ready', '/']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("dranet.")} == {
        "dranet.cli",
        "dranet.cli.main",
        "dranet.cli.parser",
        "dranet.cli.pod",
        "dranet.errors",
    }
    assert not loaded & {"asyncio", "yaml", "json", "subprocess", "socket"}
