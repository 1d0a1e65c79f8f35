"""The allocator says beforehand what the real scheduler does, on the versions whose programs are here."""

from __future__ import annotations

import pytest

from tests.desk.scheduler.settings import SETTINGS, Setting
from tests.support.real_cluster import run_module

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

_CASES, _SEED = 150, 3
_ORDERED = [setting for setting in SETTINGS if setting.is_ordered]


@pytest.mark.parametrize("setting", _ORDERED, ids=lambda setting: setting.slug)
def test_explain_says_what_the_scheduler_then_does(setting: Setting) -> None:
    said = _run(setting, "--cases", str(_CASES), "--seed", str(_SEED))
    assert f"{_CASES} cases" in said


def test_claim_new_says_what_the_newest_scheduler_then_does_on_each_layout() -> None:
    assert "\n  0 differences" in _run(_ORDERED[0], "--layouts", "OURS")


def _run(setting: Setting, *words: str) -> str:
    """What the command prints for the setting; its exit code says that there is no difference."""
    setting_words = ("--version", setting.version, "--setting", setting.name)
    return run_module("tests.desk.scheduler", setting.version, *setting_words, *words)
