"""The folder of ``tmp_path``: one for each run, removed when the run has passed.

Without it pytest puts all runs of a user below one folder, and each run removes what earlier ones left, at
its end. Runs that end together then remove the same files, and with ``filterwarnings = error`` the warning of
the one that comes too late ends its run as failed.
"""

from __future__ import annotations

import shutil
import tempfile

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest reads the option
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None:  # else the user has chosen one, or this is a worker
        config.option.basetemp = tempfile.mkdtemp(prefix="dranet-tests-")
        config.pluginmanager.register(_Removal(config.option.basetemp), "temporary folder")


class _Removal:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Remove the folder; a failed run keeps it for whoever looks for the reason."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            shutil.rmtree(self._folder, ignore_errors=True)
