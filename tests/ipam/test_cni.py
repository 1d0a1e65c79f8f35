"""Plugins as programs: what they are given, what becomes of their answers, and of those that misbehave."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import IpamError
from dranet.ipam import cni, program
from dranet.ipam.cni import CheckUnsupported, CniPlugins
from dranet.ipam.program import Outcome, run_program
from dranet.model.ipam import CniNetwork, IpamAnswer, IpamRequest, IpamRoute, parse_cni
from tests.support.cni_plugins import find_plugins, read_host_local, write_plugin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

RESULT = '{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}]}'


def make_request(plugin: str = "stand-in", ifname: str = "net1", **ipam: Any) -> IpamRequest:
    version = ipam.pop("cniVersion", "1.0.0")
    source = parse_cni("storage", {"cniVersion": version, "ipam": {"type": plugin, **ipam}})
    return IpamRequest("eth1", "storage", source, "uid.pod-uid", ifname, "team", "worker-0", "pod-uid")


@pytest.fixture
def descriptor() -> Any:
    made = os.open("/dev/null", os.O_RDONLY)
    yield made
    os.close(made)


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str], CniPlugins]:
    return lambda script: CniPlugins([tmp_path / "none", write_plugin(tmp_path / "bin", "stand-in", script)])


def test_a_plugin_gets_what_the_specification_names_and_nothing_else(
    plugin: Callable[[str], CniPlugins], tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRANET_SECRET", "x")
    seen, given = tmp_path / "environment", tmp_path / "config"
    plugins = plugin(f"env | grep -v ^PWD= > {seen}; cat > {given}; echo '{RESULT}'")
    assert plugins.add(make_request(subnet="10.1.0.0/24"), descriptor).addresses == ("10.1.0.5/24",)
    assert dict(line.split("=", 1) for line in seen.read_text().splitlines() if line[0] != "_") == {
        "PATH": os.environ["PATH"],
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "uid.pod-uid",
        "CNI_NETNS": "/dev/null",
        "CNI_IFNAME": "net1",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=team;K8S_POD_NAME=worker-0;"
        "K8S_POD_INFRA_CONTAINER_ID=uid.pod-uid;K8S_POD_UID=pod-uid",
        "CNI_PATH": f"{tmp_path / 'none'}:{tmp_path / 'bin'}",
    }
    assert json.loads(given.read_text()) == {
        "cniVersion": "1.0.0",
        "name": "storage",
        "ipam": {"type": "stand-in", "subnet": "10.1.0.0/24"},
    }


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 1", "storage: stand-in ADD: it ended with status 1 and no message"),
        ("kill -9 $$", "it ended with signal 9 and no message"),
        ("echo panic: oh >&2; exit 2", "stand-in ADD: panic: oh"),
        ("echo oh no; exit 1", "stand-in ADD: oh no"),
        (
            'echo \'{"code": 11, "msg": "full", "details": "no address left"}\'; exit 1',
            "full: no address left (the",
        ),
        ('echo \'{"code": 7, "msg": "bad subnet"}\'; exit 1', "bad subnet (correct the entry of ipam_file)"),
        ('echo \'{"code": [], "msg": {}}\'; echo why >&2; exit 1', "stand-in ADD: why"),
        ('printf \'{"msg": "a\\\\u0007b\\\\nc"}\'; exit 1', "stand-in ADD: a?b c"),
        ("echo", "its result is wrong: it is no JSON"),
        ("echo []", "its result is wrong: it is no JSON object"),
        ('echo \'{"cniVersion": "0.2.0"}\'', "its result is wrong: cniVersion: must be one of 0.3.0"),
        ('echo \'{"cniVersion": "1.0.0"}\'', "its result is wrong: ips: has no address"),
        ("yes", "it printed more than 1048576 bytes, so it was killed"),
        ("yes >&2", "it printed more than 1048576 bytes, so it was killed"),
    ],
)
def test_a_plugin_that_fails_is_an_error_with_its_reason(
    plugin: Callable[[str], CniPlugins], descriptor: int, script: str, expected: str
) -> None:
    with pytest.raises(IpamError) as caught:
        plugin(script).add(make_request(), descriptor)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 1000


_texts = st.text(max_size=40) | st.integers() | st.none()
_objects = st.dictionaries(st.sampled_from(["code", "msg", "details", "cniVersion", "ips"]), _texts)
_printed = st.binary(max_size=60) | _objects.map(lambda found: json.dumps(found).encode())


@given(_printed, st.binary(max_size=60), st.integers(-64, 255))
def test_whatever_a_plugin_prints_is_an_answer_or_one_printable_line(
    output: bytes, errors: bytes, status: int
) -> None:
    found = "an answer"
    with mock.patch.object(cni, "run_program", return_value=Outcome(status, output, errors)):
        try:
            CniPlugins([Path("/bin")]).add(make_request("sh"), 0)
        except IpamError as error:
            found = str(error)
    assert found.isprintable()
    assert len(found) < 1000
    assert status == 0 or found != "an answer"


@pytest.mark.parametrize("script", ["sleep 1000", "sleep 1000 & echo '{}'", "exec >&- 2>&-; sleep 1000"])
def test_a_plugin_that_hangs_is_killed_with_its_children(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(cni, "ADD_SECONDS", 0.3)
    pids = tmp_path / "group"
    folder = write_plugin(tmp_path / "bin", "stand-in", f"echo $$ > {pids}; {script}")
    with pytest.raises(IpamError, match=r"no answer within 0\.3 s, so it was killed"):
        CniPlugins([folder]).add(make_request(), descriptor)
    wait_until(lambda: not is_alive(int(pids.read_text())), "the group is gone")


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_missing_plugin_is_named_with_the_folders(tmp_path: Path, descriptor: int) -> None:
    with pytest.raises(IpamError, match=f"stand-in is not in {tmp_path}") as caught:
        CniPlugins([tmp_path]).add(make_request(), descriptor)
    assert "cni_bin_dirs" in caught.value.hint


def test_a_file_that_is_no_program_is_named(tmp_path: Path, descriptor: int) -> None:
    folder = write_plugin(tmp_path / "bin", "stand-in", "")
    (folder / "stand-in").write_bytes(b"\x7fELF")
    with pytest.raises(IpamError, match="cannot be started: Exec format error"):
        CniPlugins([folder]).add(make_request(), descriptor)


def test_a_program_that_reads_nothing_is_not_waited_for(tmp_path: Path, descriptor: int) -> None:
    program = write_plugin(tmp_path / "bin", "x", "echo done") / "x"
    found = run_program(program, {}, b"x" * (1 << 22), seconds=40, inherited=descriptor)
    assert (found.status, found.output) == (0, b"done\n")


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_program_that_cannot_be_killed_is_not_waited_for(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps one in an uninterruptible wait; its pipes stay open with it."""
    monkeypatch.setattr(program, "_REAP_SECONDS", 0.01)
    script = write_plugin(tmp_path / "bin", "x", "echo $$; exec sleep 60") / "x"
    before = set(Path("/proc/self/fd").iterdir())
    with mock.patch.object(os, "killpg"):
        found = run_program(script, {"PATH": os.defpath}, b"", seconds=0.5, inherited=descriptor)
    assert found.is_late
    assert set(Path("/proc/self/fd").iterdir()) == before
    os.kill(int(found.output), signal.SIGKILL)
    os.waitpid(int(found.output), 0)


ANSWER = IpamAnswer(
    "storage",
    "static",
    "uid.pod-uid",
    ("10.1.0.5/24", "fd00::5/64"),
    ("10.1.0.1", ""),
    (IpamRoute("10.2.0.0/16", "10.1.0.1"),),
)


@pytest.mark.parametrize(
    "script",
    [
        'echo \'{"code": 1, "msg": "incompatible CNI versions"}\'; exit 1',
        'echo \'{"code": 100, "msg": "CNI CHECK method is not implemented"}\'; exit 1',
    ],
)
def test_a_plugin_without_check_has_not_failed_one(
    plugin: Callable[[str], CniPlugins], descriptor: int, script: str
) -> None:
    with pytest.raises(CheckUnsupported):
        plugin(script).check(make_request(), ANSWER, descriptor)
    with pytest.raises(CheckUnsupported):
        plugin("exit 1").check(make_request(cniVersion="0.3.1"), ANSWER, descriptor)


# --- the reference plugins ---


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0"])
def test_host_local_from_add_to_del(tmp_path: Path, descriptor: int, version: str) -> None:
    plugins = CniPlugins([find_plugins("host-local")])

    def request(ifname: str) -> IpamRequest:
        return make_request(
            "host-local",
            ifname,
            cniVersion=version,
            dataDir=str(tmp_path),
            ranges=[[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
            routes=[{"dst": "0.0.0.0/0"}, {"dst": "fd00:2::/48", "gw": "fd00:1::9"}],
        )

    answer = plugins.add(request("net1"), descriptor)
    assert answer == IpamAnswer(
        "storage",
        "host-local",
        "uid.pod-uid",
        ("10.1.0.2/24", "fd00:1::2/64"),
        ("10.1.0.1", "fd00:1::1"),
        (IpamRoute("0.0.0.0/0", "10.1.0.1"), IpamRoute("fd00:2::/48", "fd00:1::9")),
    )
    other = plugins.add(request("net2"), descriptor)
    assert other.addresses == ("10.1.0.3/24", "fd00:1::3/64")
    with pytest.raises(IpamError, match="duplicate allocation"):
        plugins.add(request("net1"), descriptor)
    if version >= "0.4.0":
        plugins.check(request("net1"), answer, descriptor)
    for _ in range(2):
        plugins.delete(request("net1"), descriptor)
    assert set(read_host_local(tmp_path, "storage").values()) == {("uid.pod-uid", "net2")}
    if version >= "0.4.0":
        with pytest.raises(IpamError, match="Failed to find address") as caught:
            plugins.check(request("net1"), answer, descriptor)
        assert not isinstance(caught.value, CheckUnsupported)


def test_an_exhausted_pool_is_an_error_of_the_plugin(tmp_path: Path, descriptor: int) -> None:
    plugins = CniPlugins([find_plugins("host-local")])
    settings: dict[str, Any] = {"dataDir": str(tmp_path), "ranges": [[{"subnet": "10.1.0.0/30"}]]}
    plugins.add(make_request("host-local", "net1", **settings), descriptor)
    with pytest.raises(IpamError, match="no IP addresses available in range set"):
        plugins.add(make_request("host-local", "net2", **settings), descriptor)


def test_static_gives_what_is_written(descriptor: int) -> None:
    plugins = CniPlugins([find_plugins("static")])
    request = make_request(
        "static",
        addresses=[{"address": "10.1.0.7/24", "gateway": "10.1.0.1"}],
        routes=[{"dst": "10.2.0.0/16"}],
        dns={"nameservers": ["10.1.0.53"]},
    )
    answer = plugins.add(request, descriptor)
    assert (answer.addresses, answer.routes) == (("10.1.0.7/24",), (IpamRoute("10.2.0.0/16", "10.1.0.1"),))
    assert answer.ignored == ("dns",)
    plugins.check(request, answer, descriptor)
    plugins.delete(request, descriptor)


def test_dhcp_cannot_answer_before_there_is_a_namespace(descriptor: int) -> None:
    """Why an entry with it is refused: it works inside the pod's namespace, which comes after Prepare."""
    plugins = CniPlugins([find_plugins("dhcp")])
    request = make_request("stand-in")
    config = {**request.source.config, "ipam": {"type": "dhcp", "daemonSocketPath": "/nonexistent"}}
    dhcp = IpamRequest(
        "eth1", "storage", CniNetwork(config), "uid.pod-uid", "net1", "team", "worker-0", "pod-uid"
    )
    with pytest.raises(IpamError, match="dhcp ADD: error dialing DHCP daemon"):
        plugins.add(dhcp, descriptor)
