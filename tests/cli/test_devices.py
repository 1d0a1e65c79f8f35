"""``dranet devices``, as the program that people type, on captures and in a real network namespace."""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dranet.cli.devices_watch import Event, compare
from dranet.cli.look import Eye
from dranet.cli.main import main
from dranet.desk.kubeapi.kinds import find_kind
from dranet.desk.kubeapi.validation import validate
from dranet.errors import SettingsError
from dranet.inventory.policy import Decision
from dranet.kernel.discovery.watch import ChangeWatch, Patience
from dranet.model.capture import Capture, encode_capture
from dranet.model.device import AttributeValue, Device, DeviceKind
from dranet.model.facts import NodeFacts
from dranet.pictures.summary import (
    DeviceSummary,
    first_of,
    model_text,
    rate_text,
    speed_text,
    summarize,
    vendor_text,
)
from dranet.terminal import Screen, cut, find_screen, format_table, printable
from dranet.view.options import read_capture
from tests.cli.small_node import SMALL, nic, pci
from tests.support.namespaces import Namespace

ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("DRANET_", "COLUMNS", "NO_COLOR", "PYTHONUNBUFFERED"))
}
AS_IN_A_TERMINAL = ("env", "--default-signal=HUP,INT")
"""A job that a shell put into the background is started with these ignored."""

PROGRAM = (sys.executable, "-m", "dranet")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Dranet = Callable[..., Done]


@pytest.fixture
def dranet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dranet:
    """The program, run in this process, in a pipe."""
    for key in os.environ.keys() - ENVIRONMENT.keys():
        monkeypatch.delenv(key)

    def run(*arguments: str, **environment: str) -> Done:
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            try:
                code = main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def write_capture(path: Path, facts: NodeFacts = SMALL) -> str:
    path.write_text(encode_capture(Capture(facts, "made by a test")))
    return str(path)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return write_capture(tmp_path / "small.json")


def test_the_table_lists_what_is_offered_and_counts_the_rest(dranet: Dranet, small: str) -> None:
    done = dranet("devices", "--facts", small)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "DEVICE            KIND  LINK      RDMA    NUMA  PCIE ROOT\n"
        "pci-0000-23-00-0  nic   rail0     mlx5_0  0     pci0000:20\n"
        "pci-0000-81-00-0  nic   ens1f0    -       1     pci0000:80\n"
        "pci-0000-81-00-2  nic   ens1f0v0  -       1     pci0000:80\n"
        "dummy0            nic   dummy0    -       -     -\n"
        "gpu-0000-24-00-0  gpu   -         -       0     pci0000:20\n"
        "\n"
        "4 NICs, 1 GPU offered; 2 not offered (--all shows why)\n"
    )


def test_all_adds_what_is_held_back_with_the_reason(dranet: Dranet, small: str) -> None:
    lines = dranet("devices", "--facts", small, "--all").stdout.splitlines()
    assert lines[0] == "DEVICE            KIND  LINK      RDMA    NUMA  PCIE ROOT   OFFERED"
    assert lines[1] == (
        "pci-0000-01-00-0  nic   eno1      -       0     pci0000:00  "
        "no: is the node's uplink: eno1 carries a default route"
    )
    assert lines[2].endswith("pci0000:20  yes")
    assert lines[-1] == "4 NICs, 1 GPU offered; 2 not offered"


def test_wide_adds_state_speed_address_sriov_model_and_the_nearest_gpu(dranet: Dranet, small: str) -> None:
    rows = dranet("devices", "--facts", small, "-o", "wide").stdout.splitlines()
    cells = {line.split()[2]: line.split(maxsplit=6)[6] for line in rows[1:6]}
    assert rows[0].split(maxsplit=7)[7] == (
        "STATE    SPEED     RATE          ADDRESS      SR-IOV           MODEL                  NEAREST GPU"
    )
    rail = "up 400 Gb/s 400 Gb/s NDR 10.0.0.3/24 - Mellanox ConnectX-7 PIX gpu-0000-24-00-0"
    assert " ".join(cells["rail0"].split()) == rail
    assert "PF 1/8" in cells["ens1f0"]
    assert "VF 0 of 81:00.0" in cells["ens1f0v0"]
    assert cells["ens1f0v0"].startswith("down     -         -")


COUNTING = (
    "--shared-devices",
    'device.attributes["dra.net"].?ifName.orValue("") == "rail0"',
    "--default-bandwidth",
    "1G",
)


def test_wide_and_the_document_have_the_bandwidth_that_is_counted(dranet: Dranet, small: str) -> None:
    rows = dranet("devices", "--facts", small, "-o", "wide", *COUNTING).stdout.splitlines()
    assert rows[0].endswith("NEAREST GPU           BANDWIDTH")
    assert [row.endswith("400 Gb/s") for row in rows[1:4]] == [True, False, False]
    found = json.loads(dranet("devices", "--facts", small, "-o", "json", *COUNTING).stdout)
    assert {one["ifName"]: one["bandwidth"] for one in found if one["bandwidth"]} == {
        "rail0": {"capacity": 400 * 10**9, "default": 10**9, "allocated": None}
    }


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("form", ["table", "wide", "tree"])
def test_no_line_is_wider_than_the_terminal(dranet: Dranet, small: str, columns: int, form: str) -> None:
    done = dranet("devices", "--facts", small, "--all", "-o", form, COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= columns
    if form != "tree":  # which cuts
        assert "is the node's uplink: eno1 carries a default route" in " ".join(done.stdout.split())


def test_json_and_yaml_say_everything_and_the_same(dranet: Dranet, small: str) -> None:
    rows = json.loads(dranet("devices", "--facts", small, "--all", "-o", "json").stdout)
    assert yaml.safe_load(dranet("devices", "--facts", small, "--all", "-o", "yaml").stdout) == rows
    by_name: dict[str, Any] = {row["name"]: row for row in rows}
    assert by_name["lo"]["published"] is False
    assert by_name["lo"]["reason"] == "is the loopback"
    rail = by_name["pci-0000-23-00-0"]
    assert rail["nearestGpus"] == {"distance": "PIX", "devices": ["gpu-0000-24-00-0"]}
    assert rail["attributes"]["dra.net/ifName"] == "rail0"
    assert rail["pciPath"] == ["0000:20:01.0", "0000:21:00.0", "0000:22:00.0", "0000:23:00.0"]
    assert by_name["pci-0000-81-00-0"]["virtualFunctions"] == ["pci-0000-81-00-2"]
    assert by_name["pci-0000-81-00-2"]["physicalFunction"] == "pci-0000-81-00-0"
    assert len({tuple(row) for row in rows}) == 1, "each device has the same keys"


def test_an_attribute_that_a_slice_has_no_room_for_is_shown_and_marked(
    dranet: Dranet, small: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    names = [f"example.com/a{number:02}" for number in range(5)]
    rules.write_text(yaml.safe_dump({"attributes": [{"set": dict.fromkeys(names, 1)}]}))
    done = dranet("devices", "--facts", small, "-o", "json", "--attributes-file", str(rules))
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)[0]
    assert set(row["attributesLeftOut"]) <= set(row["attributes"])
    assert len(row["attributes"]) - len(row["attributesLeftOut"]) == 32


def test_slices_are_what_the_api_server_takes(dranet: Dranet, small: str) -> None:
    done = dranet("devices", "--facts", small, "-o", "slices")
    slices = list(yaml.safe_load_all(done.stdout))
    kind = find_kind("resource.k8s.io", "v1", "resourceslices")
    assert kind is not None
    assert [validate(kind, _named(body), None) for body in slices] == [[]]
    (body,) = slices
    assert body["metadata"] == {"generateName": "00000-dra.net-node-1-"}
    assert (body["spec"]["driver"], body["spec"]["nodeName"]) == ("dra.net", "node-1")
    names = [device["name"] for device in body["spec"]["devices"]]
    assert names == [
        "pci-0000-23-00-0",
        "pci-0000-81-00-2",
        "pci-0000-81-00-0",
        "dummy0",
        "gpu-0000-24-00-0",
    ], "in the order of publishing: the card after its virtual functions"


def _named(body: dict[str, Any]) -> dict[str, Any]:
    """As the API server does before it validates."""
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "name": metadata["generateName"] + "abcde"}}


def test_the_names_in_a_slice_follow_the_settings(dranet: Dranet, small: str) -> None:
    flags = ("--driver-name", "net.example.com", "--node-name", "other")
    (body,) = yaml.safe_load_all(dranet("devices", "--facts", small, "-o", "slices", *flags).stdout)
    assert body["metadata"]["generateName"] == "00000-net.example.com-other-"


def test_the_settings_that_shape_the_inventory_are_flags(dranet: Dranet, small: str) -> None:
    done = dranet("devices", "--facts", small, "--publish-gpus", "never", "-o", "json")
    assert "gpu" not in {row["kind"] for row in json.loads(done.stdout)}


def test_the_settings_file_of_the_driver_says_the_same(dranet: Dranet, small: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        'filter: "false"\nbind_address: ":9178"\n'
    )  # the driver's whole file: also what shapes nothing
    assert "nothing offered" in dranet("devices", "--facts", small, "--config", str(file)).stdout


def test_a_file_in_a_flag_is_looked_for_where_the_user_is(
    dranet: Dranet, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.yaml").write_text("attributes: [{set: {tenant: blue}}]")
    monkeypatch.chdir(tmp_path)
    done = dranet("devices", "--facts", small, "--attributes-file", "rules.yaml", "-o", "json")
    assert {row["attributes"]["dra.net/tenant"] for row in json.loads(done.stdout)} == {"blue"}


def test_a_capture_comes_from_standard_input_too(
    dranet: Dranet, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = dranet("devices", "--facts", small).stdout
    with Path(small).open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert dranet("devices", "--facts", "-").stdout == shown


def test_the_drivers_own_setting_for_a_capture_counts_too(dranet: Dranet, small: str) -> None:
    assert dranet("devices", DRANET_FACTS_FILE=small).stdout == dranet("devices", "--facts", small).stdout


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"{", "not JSON"),
        (b"{}", "format"),
        (b'{"format": "dranet.capture/1", "facts": {"links": [{"ifindex": "x"}]}}', "facts"),
    ],
)
def test_a_bad_capture_is_one_clear_line_and_exit_code_2(
    dranet: Dranet, content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    done = dranet("devices", "--facts", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"dranet: capture {path}: ")
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_a_capture_without_end_is_refused_when_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dranet.model.capture.MAX_CAPTURE_BYTES", 1 << 16)
    with pytest.raises(SettingsError, match="longer than"):
        read_capture("/dev/zero", "--facts")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--watch", "-o", "json"], "--watch goes with -o table, wide, tree"),
        (["--watch", "--facts", "x"], "a capture does not change"),
        (["--facts", ""], "capture : "),
        (["--rescan-seconds", "1"], "unknown option --rescan-seconds"),
        (["--sysfs-root", "sys"], "--sysfs-root"),
        (["-o", "xml"], "unknown value 'xml'"),
    ],
)
def test_bad_arguments_are_exit_code_2(dranet: Dranet, arguments: list[str], problem: str) -> None:
    done = dranet("devices", *arguments)
    assert done.returncode == 2
    assert problem in done.stderr


def test_odd_names_cannot_reach_the_terminal(dranet: Dranet, tmp_path: Path) -> None:
    facts = NodeFacts(
        links=(nic(2, "a\x1b[2Jb", "0000:01:00.0"), nic(3, "\udcff", "0000:02:00.0")),
        pci_functions=(pci("0000:01:00.0", "pci0000:00"), pci("0000:02:00.0", "pci0000:00")),
    )
    capture = tmp_path / "odd.json"
    # surrogates do not go into a file as UTF-8: JSON has an escape for them
    document = json.loads(encode_capture(Capture(facts, "made by a test")))
    capture.write_text(json.dumps(document))
    for form in ("table", "wide", "tree", "json", "yaml", "slices"):
        done = dranet("devices", "--facts", str(capture), "--all", "-o", form)
        assert (done.returncode, "\x1b" in done.stdout) == (0, False), done.stderr
    assert "a\\x1b[2Jb" in dranet("devices", "--facts", str(capture)).stdout


def test_what_could_not_be_read_is_said_once_beside_the_output(dranet: Dranet, tmp_path: Path) -> None:
    facts = replace(SMALL, warnings=("no GPU driver", "no GPU driver", "no RDMA"))
    done = dranet("devices", "--facts", write_capture(tmp_path / "w.json", facts))
    assert done.stderr == "warning: no GPU driver\nwarning: no RDMA\n"


def test_a_node_that_offers_nothing_says_so(dranet: Dranet, tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "lo.json", NodeFacts(links=SMALL.links[:1]))
    assert (
        dranet("devices", "--facts", capture).stdout == "nothing offered; 1 not offered (--all shows why)\n"
    )


# -- the screen -----------------------------------------------------------------------------------------


def test_a_row_that_is_too_long_wraps_its_last_cell_or_puts_it_below() -> None:
    rows = [["a", "some words that do not fit here"], ["b" * 20, "yes"]]
    assert format_table(["NAME", "WHY"], rows, 50) == [
        ["NAME                  WHY"],
        ["a                     some words that do not fit", " " * 22 + "here"],
        ["bbbbbbbbbbbbbbbbbbbb  yes"],
    ]
    assert format_table(["NAME", "WHY"], rows, 30) == [
        ["NAME                  WHY"],
        ["a", "    some words that do not fit", "    here"],
        ["bbbbbbbbbbbbbbbbbbbb  yes"],
    ]


def test_columns_that_do_not_fit_come_as_a_further_line_of_every_row() -> None:
    table = format_table(["ONE", "TWO", "THREE"], [["1" * 8, "2" * 8, "3" * 8]], 20)
    assert table == [["ONE       TWO", "    THREE"], ["11111111  22222222", "    33333333"]]


def test_without_a_limit_nothing_wraps() -> None:
    assert format_table(["A", "B"], [["x" * 200, "y z"]]) == [["A" + " " * 201 + "B"], ["x" * 200 + "  y z"]]


def test_text_is_cut_with_an_ellipsis_and_escapes_are_shown() -> None:
    assert (cut("abcdef", 4), cut("abcd", 4), cut("abcdef", None)) == ("abc…", "abcd", "abcdef")
    assert printable("a\x1bb\udcff\n") == "a\\x1bb\\udcff\\n"


def test_the_settings_of_the_node_are_found_unless_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, file, other = tmp_path / "facts.json", tmp_path / "settings.yaml", tmp_path / "other.yaml"
    capture.write_text(encode_capture(Capture(SMALL)))
    file.write_text("driver_name: chart.example\n")
    other.write_text("driver_name: other.example\n")
    monkeypatch.setattr("dranet.view.options.NODE_CONFIG", file)
    command = ["devices", "-o", "slices", "-f", str(capture)]
    for more, wanted in (([], "chart.example"), (["--config", str(other)], "other.example")):
        assert main([*command, *more]) == 0
        (first, *_) = yaml.safe_load_all(capsys.readouterr().out)
        assert first["spec"]["driver"] == wanted


def test_there_are_no_colours_in_a_pipe_and_none_where_they_are_unwanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Screen(colours=False).dim("x") == "x"
    assert Screen(colours=True).dim("x") == "\x1b[2mx\x1b[0m"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert find_screen().colours
    monkeypatch.setenv("NO_COLOR", "1")
    assert not find_screen().colours


@pytest.mark.parametrize("name", ["CLICOLOR_FORCE", "FORCE_COLOR"])
def test_colours_can_be_had_in_a_pipe_unless_they_are_unwanted(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for value, wanted in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv(name, value)
        assert find_screen().colours is wanted
    assert find_screen().red("x") == "\x1b[1;31mx\x1b[0m"
    assert find_screen().yellow("x") == "\x1b[1;33mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not find_screen().colours


# -- words ----------------------------------------------------------------------------------------------


def test_speeds_rates_and_makers_are_in_peoples_words() -> None:
    assert [speed_text(mbps) for mbps in (None, 100, 2500, 400_000)] == [
        "",
        "100 Mb/s",
        "2.5 Gb/s",
        "400 Gb/s",
    ]
    assert [rate_text(t) for t in ("400 Gb/sec (4X NDR)", "10 Gb/sec", "odd")] == [
        "400 Gb/s NDR",
        "10 Gb/s",
        "odd",
    ]
    assert [
        vendor_text(name)
        for name in ("Mellanox Technologies", "Red Hat, Inc.", "Advanced Micro Devices, Inc. [AMD/ATI]")
    ] == ["Mellanox", "Red Hat", "AMD/ATI"]
    assert model_text(replace(pci("0000:01:00.0", "r"), vendor_name="", device_name="")) == "15b3:1021"
    assert model_text(pci("0000:01:00.0", "r")) == "Mellanox ConnectX-7"
    assert (first_of([]), first_of(["a"]), first_of(["a", "b", "c"])) == ("", "a", "a +2")


@pytest.mark.parametrize(
    ("traits", "pace"),
    [
        (DeviceSummary(state="up", speed="400 Gb/s", rate="400 Gb/s NDR"), "400 Gb/s NDR"),
        (DeviceSummary(state="up", speed="1 Gb/s", rate="2.5 Gb/s SDR"), "1 Gb/s"),
        (DeviceSummary(state="up", speed="1 Gb/s"), "1 Gb/s"),
        (DeviceSummary(state="active", rate="800 Gb/s XDR"), "800 Gb/s XDR"),
        (DeviceSummary(state="down", rate="10 Gb/s SDR"), "down"),
        (DeviceSummary(), ""),
    ],
)
def test_the_pace_is_what_the_link_does_and_names_the_generation_where_that_fits(
    traits: DeviceSummary, pace: str
) -> None:
    assert traits.speed_or_state == pace


def decision(name: str, published: bool = True, reason: str = "", **attributes: AttributeValue) -> Decision:
    return Decision(Device(name, DeviceKind.NIC, attributes, ifname=name), published, reason)


def test_the_summary_counts_each_kind() -> None:
    rdma = Decision(Device("r", DeviceKind.RDMA), True, "")
    assert summarize([decision("a"), rdma], shows_all=False) == "1 NIC, 1 RDMA-only device offered"
    assert summarize([], shows_all=True) == "nothing offered"


# -- watching -------------------------------------------------------------------------------------------


def test_two_looks_are_compared_device_by_device_with_old_and_new_values() -> None:
    before = [decision("a", mtu=1500, up=True), decision("b"), decision("c", reason="x")]
    after = [
        decision("a", mtu=9000, up=True, alias=""),
        decision("c", published=False, reason="is the uplink"),
        decision("d"),
    ]
    assert list(compare(before, after)) == [
        Event("changed", "a", 'alias: (none) -> ""; mtu: 1500 -> 9000'),
        Event("changed", "c", "offered -> not offered: is the uplink"),
        Event("came", "d", "nic d, offered"),
        Event("gone", "b", "nic b, offered"),
    ]
    assert list(compare(after, after)) == []


class Watcher:
    """``dranet devices --watch`` in a namespace, read with a deadline."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.seen = ""

    def wait_for(self, condition: Callable[[str], bool], seconds: float = 30) -> str:
        deadline = time.monotonic() + seconds
        while not condition(self.seen):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s; seen: {self.seen!r}"
            if select.select([self._descriptor], [], [], left)[0]:
                chunk = os.read(self._descriptor, 1 << 16)
                assert chunk, f"ended early; seen: {self.seen!r}"
                self.seen += chunk.decode()
        return self.seen

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(20)


@contextmanager
def watching(namespace: Namespace, *arguments: str, terminal: bool = False) -> Iterator[Watcher]:
    inside = ("ip", "netns", "exec", namespace.name, *AS_IN_A_TERMINAL)
    command = (*inside, *PROGRAM, "devices", "--watch", *arguments)
    reader, writer = pty.openpty() if terminal else os.pipe()
    environment = ENVIRONMENT | {"TERM": "xterm", "LINES": "30", "COLUMNS": "100"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, env=environment
    )
    os.close(writer)
    try:
        yield Watcher(process, reader)
    finally:
        process.kill()
        process.communicate()
        os.close(reader)


OFFER = ("--offer-link-kinds", "veth")


@pytest.mark.kernel
def test_in_a_pipe_each_device_that_came_went_or_changed_is_a_line(
    make_namespace: Callable[..., Namespace],
) -> None:
    namespace = make_namespace()
    namespace.ip("link", "add", "first", "type", "veth", "peer", "name", "first-far")
    with watching(namespace, *OFFER) as watcher:
        watcher.wait_for(lambda seen: "  here     first  nic first, offered\n" in seen)
        namespace.ip("link", "add", "second", "type", "veth", "peer", "name", "second-far")
        watcher.wait_for(lambda seen: "  came     second  nic second, offered\n" in seen)
        namespace.ip("link", "set", "first", "mtu", "1400")
        watcher.wait_for(lambda seen: "  changed  first  dra.net/mtu: 1500 -> 1400\n" in seen)
        namespace.ip("link", "del", "second")
        watcher.wait_for(lambda seen: "  gone     second  nic second, offered\n" in seen)
        assert watcher.interrupt() == 0
        assert watcher.process.stderr is not None
        assert b"Traceback" not in watcher.process.stderr.read()


@pytest.mark.kernel
def test_in_a_terminal_the_table_is_drawn_again(make_namespace: Callable[..., Namespace]) -> None:
    namespace = make_namespace()
    with watching(namespace, *OFFER, terminal=True) as watcher:
        watcher.wait_for(lambda seen: "nothing offered; " in seen)
        namespace.ip("link", "add", "second", "type", "veth", "peer", "name", "far")
        drawn = watcher.wait_for(lambda seen: "2 NICs offered; " in seen)
        table = drawn.partition("2 NICs offered; ")[0].rpartition("\x1b[H")[2]  # the next may have begun
        assert table.count("second") == 2, "device and link, drawn from the top"
        assert watcher.interrupt() == 0


def test_somebody_who_looks_on_is_told_within_a_second(
    dranet: Dranet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Patience] = []

    def watch(patience: Sequence[Patience]) -> ChangeWatch:
        asked.extend(patience)
        raise KeyboardInterrupt

    monkeypatch.setattr("dranet.cli.devices_watch.ChangeWatch", watch)
    assert dranet("devices", "--watch").returncode == 0
    assert [patience.longest_seconds for patience in asked] == [1.0]


def test_looking_again_takes_the_same_settings(tmp_path: Path) -> None:
    capture = write_capture(tmp_path / "c.json")
    eye = Eye(argparse.Namespace(facts=capture, publish_gpus="never"))
    first = [(device.name, device.kind) for device in eye.look().offered]
    assert first
    assert DeviceKind.GPU not in {kind for _, kind in first}
    assert [(device.name, device.kind) for device in eye.look().offered] == first
