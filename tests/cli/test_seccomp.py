"""``dranet seccomp``: the profile printed, and put where a kubelet finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dranet.cli.main import main
from dranet.security.seccomp import RULES, SECCOMP_NAME, Argument, SyscallRule, render_seccomp_profile


def test_the_printed_profile_denies_by_default_and_is_of_both_architectures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["seccomp"]) == 0
    profile = json.loads(capsys.readouterr().out)
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert set(profile["architectures"]) == {"SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"}
    assert {rule["action"] for rule in profile["syscalls"]} == {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}


def test_written_it_is_whole_and_may_be_read_by_the_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kubelet" / "seccomp"
    for _ in range(2):  # an init container runs again with each pod
        assert main(["seccomp", "--write", str(folder)]) == 0
        assert capsys.readouterr().out == f"{folder / SECCOMP_NAME}\n"
    assert (folder / SECCOMP_NAME).read_text() == render_seccomp_profile()
    assert (folder / SECCOMP_NAME).stat().st_mode & 0o777 == 0o644
    assert [file.name for file in folder.iterdir()] == [SECCOMP_NAME]


def test_profiles_of_others_stay_and_a_spoilt_one_of_ours_is_mended(tmp_path: Path) -> None:
    other, ours = tmp_path / "dranet-0123456789ab.json", tmp_path / SECCOMP_NAME
    other.write_text("{}")
    ours.write_text("{}")
    assert main(["seccomp", "--write", str(tmp_path)]) == 0
    assert (other.read_text(), ours.read_text()) == ("{}", render_seccomp_profile())


def test_a_folder_that_refuses_is_named_with_the_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seccomp").write_text("a file")
    assert main(["seccomp", "--write", str(tmp_path / "seccomp")]) == 2
    assert "mount the kubelet's folder seccomp there" in capsys.readouterr().err


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / SECCOMP_NAME).symlink_to(elsewhere)
    assert main(["seccomp", "--write", str(tmp_path)]) == 2
    assert elsewhere.read_text() == "precious"


def test_the_name_says_what_is_in_it() -> None:
    assert main(["seccomp", "--name"]) == 0
    assert SECCOMP_NAME.startswith("dranet-")


def test_a_condition_reads_as_the_runtime_wants_it() -> None:
    masked = SyscallRule("x", ("clone",), "", cases=((Argument(0, 0, 0xFF),),))
    (entry,) = masked.build()
    assert entry["args"] == [{"index": 0, "value": 0xFF, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]


@pytest.mark.parametrize(
    "call",
    [
        "mount", "move_mount", "open_tree", "umount2", "pivot_root", "chroot", "unshare", "ptrace", "mknod",
        "process_vm_readv", "init_module", "finit_module", "kexec_load", "keyctl", "perf_event_open",
        "userfaultfd", "io_uring_setup", "setuid", "capset", "reboot", "swapon", "open_by_handle_at",
    ],
)  # fmt: skip
def test_what_a_container_escapes_by_is_not_let_through(call: str) -> None:
    assert not any(call in rule.calls for rule in RULES)


def test_no_program_is_loaded_and_no_source_is_mounted() -> None:
    values = {rule.name: {case[0].value for case in rule.cases} for rule in RULES}
    loads, sources = 5, {1, 2, 3, 4, 5}
    assert loads not in values["bpf"]
    assert not sources & values["mount-options"]
    assert values["setns"] == {0x40000000}
