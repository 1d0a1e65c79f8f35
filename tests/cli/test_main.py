"""The command line, as the program that people type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dranet import __version__
from dranet.cli.main import COMMANDS, GROUPS, main

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith(("DRANET_", "PYTHONUNBUFFERED"))
}


def dranet(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dranet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT | environment)


def test_help_lists_every_command() -> None:
    done = dranet("--help")
    assert done.returncode == 0
    for command in ("run", "devices", "topology", "capture", "demo", "testbed"):
        assert command in done.stdout


def test_the_version_is_printed() -> None:
    assert dranet("--version").stdout == f"dranet {__version__}\n"


def test_for_the_version_no_command_is_loaded() -> None:
    """People and scripts ask for it often, and all commands take a third of a second."""
    code = (
        "import atexit, sys; from dranet.cli.main import main;"
        "atexit.register(lambda: print(*sys.modules)); main(['--version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dranet.cli.main" in done.stdout.split()
    assert not {"dranet.cli.run", "dranet.cli.doctor.command", "dranet.settings"} & set(done.stdout.split())


def test_without_the_testbed_its_commands_say_where_it_is() -> None:
    code = (
        "import sys; sys.modules['testbed'] = None;"
        "from dranet.cli.main import main; sys.exit(main(['testbed', 'run']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith(": in a checkout, make setup, then .venv/bin/dranet testbed run\n")


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_without_a_command_the_help_has_them_in_groups(arguments: tuple[str, ...]) -> None:
    done = dranet(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for title, group in GROUPS.items():
        assert f"\n{title}:\n  " in done.stdout
        assert [name for name in group if f"\n  {name} " not in done.stdout] == []


def test_help_of_a_command_is_its_help() -> None:
    assert dranet("help", "claim", "new").stdout == dranet("claim", "new", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("valdate", "x"), "unknown command 'valdate': did you mean validate?"),
        (("claims", "new", "--gpus", "2"), "unknown command 'claims new': did you mean dranet claim new?"),
        (("claim", "nwe"), "unknown value 'nwe': did you mean new?"),
        (("claim", "new", "--gpu", "2"), "unknown option --gpu: did you mean --gpus?"),
        (("topology", "--facts=a", "--ouput=svg"), "unknown option --ouput: did you mean --output?"),
        (("topology", "--node", "x"), "unknown option --node\n"),
        (("capture", "--file", "a"), "unknown option --file\n"),
        (("capture", "--out", "a"), "unknown option --out: did you mean --output?"),
        (("devices", "x"), "unexpected argument 'x'\n"),
        (("topology", "c.json"), "unexpected argument 'c.json': did you mean -f c.json?"),
        (("doctor", "b.tgz"), "unexpected argument 'b.tgz': did you mean -f b.tgz?"),
        (("completion", "sh"), "unknown value 'sh' (one of bash, zsh, fish)"),
        (("claim", "new", "--gpus", "one"), "argument --gpus: must be a whole number, such as 2, not 'one'"),
        (("explain", "-f", "a.yaml"), "Name a claim or a pod (KIND/NAME, before -f)"),
        (("topology", "-o", "matrx"), "unknown value 'matrx': did you mean matrix?"),
        (("xyz",), "unknown command 'xyz' (dranet --help lists them)"),
        (("--nonsense",), "unknown option --nonsense"),
    ],
)
def test_a_mistake_in_a_name_gets_the_nearest(arguments: tuple[str, ...], told: str) -> None:
    done = dranet(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "usage:" not in done.stderr


@pytest.mark.parametrize("command", ["claim", "explain", "completion", "testbed"])
def test_what_needs_arguments_and_has_none_prints_its_help(command: str) -> None:
    done = dranet(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == dranet(command, "--help").stdout


@pytest.mark.parametrize("command", ["nodes", "validate"])
def test_what_can_do_without_arguments_is_not_answered_by_its_help(command: str) -> None:
    done = dranet(command)
    assert done.returncode == 2
    assert done.stderr.startswith("dranet: ")


def test_file_names_the_input_wherever_f_does() -> None:
    assert dranet("topology", "--file", *LAYOUT[1:]).stdout == dranet("topology", *LAYOUT).stdout
    assert dranet("devices", "--file", *LAYOUT[1:]).stdout == dranet("devices", *LAYOUT).stdout
    assert "-f nowhere.tgz: No such file" in dranet("doctor", "--file", "nowhere.tgz").stderr


def test_old_names_still_work_and_get_a_hint(tmp_path: Path) -> None:
    done = dranet("claims", "--state-dir", str(tmp_path))
    assert "dranet: the command claims is now called prepared\n" in done.stderr
    assert "NotFound: the store" in done.stderr
    assert dranet("topo", *LAYOUT).stdout == dranet("topology", *LAYOUT).stdout


def test_the_settings_are_in_the_long_help_alone() -> None:
    short, long = (dranet("devices", option).stdout for option in ("--help", "--help-all"))
    assert "--help-all" in short
    assert "--pci-ids" not in short
    assert "--pci-ids" in long


def test_as_a_plugin_of_kubectl_it_calls_itself_so() -> None:
    plugin = Path(sys.executable).parent / "kubectl-dranet"
    done = subprocess.run([plugin, "topology", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: kubectl dranet topology ")


@pytest.mark.parametrize(
    ("arguments", "environment", "key"),
    [
        (["--rescan-seconds", "0"], {}, "--rescan-seconds"),
        (["--driver-name", "Not_A_Name"], {}, "--driver-name"),
        ([], {"DRANET_NRI_INDEX": "7"}, "DRANET_NRI_INDEX"),
        ([], {"DRANET_NONSENSE": "1"}, "DRANET_NONSENSE"),
        (["--config", "/nonexistent.yaml"], {}, "/nonexistent.yaml"),
        (["--kubeconfig", "/nonexistent"], {}, "/nonexistent"),
    ],
)
def test_bad_settings_stop_the_start_with_exit_code_2_and_the_key(
    arguments: list[str], environment: dict[str, str], key: str
) -> None:
    done = dranet("run", *arguments, **environment)
    assert done.returncode == 2
    assert key in done.stderr
    assert "Traceback" not in done.stderr


def test_devices_of_this_machine_are_listed_with_the_reason_for_each_that_is_held_back() -> None:
    done = dranet("devices", "--all", "--output", "json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["lo"]["published"] is False
    assert rows["lo"]["reason"] == "is the loopback"


@pytest.mark.parametrize("form", ["table", "tree"])
def test_a_node_without_pci_has_a_table_and_a_tree_that_say_why_nothing_is_offered(
    form: str, tmp_path: Path
) -> None:
    roots = ("--sysfs-root", str(tmp_path), "--procfs-root", str(tmp_path))
    done = dranet("devices", "--all", "-o", form, *roots)
    assert done.returncode == 0, done.stderr
    assert "is the loopback" in done.stdout


def test_a_reader_that_went_away_is_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "dranet", "devices", "--all"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", ["devices", "capture"])
def test_a_full_disk_is_one_line_and_no_traceback(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dranet", command, f"--pci-ids={os.devnull}"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    *_, last = done.stderr.splitlines()
    assert (done.returncode, last) == (1, "dranet: cannot write the output: No space left on device")
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_a_command_loads_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dranet.cli.main.import_module", interrupted)
    assert main(["devices"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["run", "devices", "topology", "capture"])
def test_the_help_shows_defaults_as_one_types_them(command: str) -> None:
    shown = dranet(command, "--help-all", COLUMNS="80").stdout
    assert "--pci-ids FILE" in shown
    assert "default False" not in shown


MOST_LINES = {"claim new": 92, "explain": 70}
"""Lines of a help that takes more than one screen."""


@pytest.mark.parametrize("command", [*COMMANDS, "claim new", "testbed run", "testbed list"])
def test_every_help_fits_a_terminal(command: str) -> None:
    shown = dranet(*command.split(), "--help", COLUMNS="80").stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert len(shown.splitlines()) <= MOST_LINES.get(command, 50)


LAYOUT = ("--facts", str(REPOSITORY / "tests/data/dgx-h100/capture.json"))


def test_where_the_encoding_has_no_lines_the_tree_is_drawn_with_what_looks_like_them() -> None:
    drawn = dranet("topology", *LAYOUT, PYTHONIOENCODING="utf-8").stdout
    plain = dranet("topology", *LAYOUT, PYTHONIOENCODING="ascii").stdout
    assert plain == drawn.translate(str.maketrans("├└│─", "|`|-"))
    assert dranet("topology", *LAYOUT, PYTHONIOENCODING="ascii", COLUMNS="20").stdout.startswith(
        "dgx-00, NVIDIA DGXH~\n"
    )


def test_what_programs_read_is_utf_8_in_every_locale() -> None:
    drawn = dranet("topology", *LAYOUT, "-o", "svg", PYTHONIOENCODING="utf-8").stdout
    assert " · 12 NICs" in drawn
    assert dranet("topology", *LAYOUT, "-o", "svg", PYTHONIOENCODING="latin-1").stdout == drawn


def test_sigterm_before_the_driver_is_up_is_a_quiet_end(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    (tmp_path / "settings.yaml").write_text("{}")
    done = dranet("run", "--config", str(tmp_path / "settings.yaml"), PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert (done.returncode, done.stderr) == (0, "")
