"""BPF programs on links: real programs on the hooks of throw-away links, with ``tc`` as the judge.

The programs do nothing (``return 0``) and go with the descriptors and links of the test. Linux before 6.6 has
no TCX; there those tests are skipped by name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.errors import KernelError, Reason
from dranet.kernel.attachment import hardware as removal
from dranet.kernel.attachment.hardware import read_program_names, remove_programs
from dranet.kernel.attachment.links import open_pod_side
from dranet.kernel.discovery import programs
from dranet.kernel.discovery.programs import (
    BPF_TCX_EGRESS,
    BPF_TCX_INGRESS,
    LinkPrograms,
    parse_bpf_filter,
    parse_hook_qdisc,
    parse_program,
    read_link_programs,
    read_program,
)
from dranet.kernel.netlink import socket as rights
from dranet.kernel.netlink.rtnl import decode, set_link_request
from dranet.kernel.netlink.socket import (
    CAPABILITIES,
    NetlinkSocket,
    Request,
    Rights,
    attribute,
    attribute_text,
    attribute_u32,
    kernel_error,
    nested,
)
from dranet.kernel.netlink.tc import CLSACT_EGRESS, CLSACT_INGRESS, TCMSG
from tests.kernel.loaded import BPF_XDP, XDP, Loader, add_hook, attach_filter, ifindex_of, loader, tc
from tests.kernel.plans import list_descriptors
from tests.support.namespaces import Namespace

NOTHING = LinkPrograms((), ())

PARSERS: dict[str, Callable[[bytes], object]] = {
    "qdisc": partial(parse_hook_qdisc, wanted=range(-(2**31), 2**31)),
    "filter": parse_bpf_filter,
    "xdp": removal._parse_xdp,
}


# --- hostile input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.binary(max_size=120))
def test_a_parser_of_noise_raises_nothing_but_the_rooms_own_error(parser: str, data: bytes) -> None:
    with suppress(KernelError):
        decode(PARSERS[parser], data)


PAYLOADS = st.binary(max_size=16) | st.just(b"bpf\0") | st.just(b"clsact\0")
OPTIONS = st.lists(st.tuples(st.integers(0, 12), PAYLOADS), max_size=5).map(
    lambda pairs: b"".join(attribute(kind, payload) for kind, payload in pairs)
)


@pytest.mark.parametrize("parser", PARSERS)
@given(rest=st.lists(st.tuples(st.integers(0, 4), PAYLOADS | OPTIONS), max_size=6), size=st.integers(0, 400))
def test_a_parser_of_well_formed_nonsense_raises_nothing_but_the_rooms_own_error(
    parser: str, rest: list[tuple[int, bytes]], size: int
) -> None:
    data = bytes(20) + b"".join(attribute(kind, payload) for kind, payload in rest)
    with suppress(KernelError):
        decode(PARSERS[parser], data[:size])


@given(st.binary(min_size=80, max_size=80))
def test_a_programs_description_of_any_bytes_has_a_name_that_is_text(info: bytes) -> None:
    name = parse_program(7, info).name
    assert "\0" not in name
    name.encode()


@pytest.mark.parametrize("kind", ["clsact", "ingress", "noqueue", "fq_codel", ""])
def test_only_the_qdiscs_of_the_traffic_hooks_count(kind: str) -> None:
    payload = TCMSG.pack(0, 7, 0, 0, 0) + attribute_text(1, kind)
    assert parse_hook_qdisc(payload, wanted={7}) == ((7, kind) if kind in ("clsact", "ingress") else None)
    assert parse_hook_qdisc(payload, wanted={8}) is None


def filter_message(*options: bytes, kind: str = "bpf") -> bytes:
    return TCMSG.pack(0, 7, 1, CLSACT_INGRESS, 0) + attribute_text(1, kind) + nested(2, *options)


def test_the_name_of_a_filter_is_the_one_it_was_given() -> None:
    named = attribute_text(7, "cil_from_netdev.o:[tc]")
    assert parse_bpf_filter(filter_message(attribute_u32(11, 42), named)) == "cil_from_netdev.o:[tc]"
    assert parse_bpf_filter(filter_message(attribute(7, b"od\xffd\0"))) == "od\ufffdd"


def test_a_program_without_a_name_is_told_from_none() -> None:
    program_id = attribute_u32(11, 42)
    assert parse_bpf_filter(filter_message(program_id)) == ""
    assert parse_bpf_filter(filter_message(program_id, kind="flower")) is None
    assert parse_bpf_filter(filter_message(attribute_u32(4, 1))) is None  # classic BPF: instructions only
    assert parse_bpf_filter(TCMSG.pack(0, 7, 0, CLSACT_INGRESS, 0) + attribute_text(1, "bpf")) is None


# --- real programs -------------------------------------------------------------------------------------


@pytest.fixture
def bpf_loader() -> Iterator[Loader]:
    with loader() as made:
        yield made


@pytest.fixture
def load(bpf_loader: Loader) -> Callable[[str], int]:
    return bpf_loader.load


Load = Callable[[str], int]


@pytest.fixture
def attach_tcx(bpf_loader: Loader) -> Callable[[Namespace, int, int, int], int]:
    return bpf_loader.attach_by_link


AttachTcx = Callable[[Namespace, int, int, int], int]


def read(node: Namespace, *ifindexes: int) -> dict[int, LinkPrograms]:
    """Read in the node, without a warning."""
    warnings: list[str] = []

    def inside() -> dict[int, LinkPrograms]:
        with NetlinkSocket.open() as rtnl:
            return read_link_programs(rtnl, ifindexes, warnings)

    found = node.run(inside)
    assert warnings == []
    return found


@pytest.mark.kernel
def test_filters_of_both_hooks_are_named_sorted_and_once(node: Namespace, load: Load) -> None:
    fd, eth1, eth2 = load("nothing"), ifindex_of(node, "eth1"), ifindex_of(node, "eth2")
    for link in ("eth1", "eth2", "eth3"):
        add_hook(node, link, "clsact")
    attach_filter(node, fd, eth1, CLSACT_INGRESS, b"to_pod.o:[tc]")
    attach_filter(node, fd, eth1, CLSACT_EGRESS, b"from_pod.o:[tc]")
    attach_filter(node, fd, eth2, CLSACT_EGRESS, b"same")
    attach_filter(node, fd, eth2, CLSACT_INGRESS, b"same")
    eth3, uplink = ifindex_of(node, "eth3"), ifindex_of(node, "uplink")
    assert read(node, eth1, eth2, eth3, uplink) == {
        eth1: LinkPrograms(("from_pod.o:[tc]", "to_pod.o:[tc]"), ()),
        eth2: LinkPrograms(("same",), ()),
        eth3: NOTHING,
        uplink: NOTHING,
    }


@pytest.mark.kernel
def test_the_filters_are_those_that_tc_prints(node: Namespace, load: Load) -> None:
    fd, eth1 = load("nothing"), ifindex_of(node, "eth1")
    add_hook(node, "eth1", "clsact")
    attach_filter(node, fd, eth1, CLSACT_INGRESS, b"to_pod.o:[tc]")
    attach_filter(node, fd, eth1, CLSACT_EGRESS, b"from_pod.o:[tc]")
    told = set()
    for hook in ("ingress", "egress"):
        for entry in json.loads(tc(node, "-json", "filter", "show", "dev", "eth1", hook)):
            told.add(entry.get("options", {}).get("bpf_name", ""))
    assert read(node, eth1)[eth1].tc_filters == tuple(sorted(told - {""}))


@pytest.mark.kernel
def test_the_ingress_qdisc_has_programs_too(node: Namespace, load: Load) -> None:
    fd, eth1 = load("nothing"), ifindex_of(node, "eth1")
    add_hook(node, "eth1", "ingress")
    attach_filter(node, fd, eth1, CLSACT_INGRESS, b"old.o:[classifier]")
    assert read(node, eth1) == {eth1: LinkPrograms(("old.o:[classifier]",), ())}


@pytest.mark.kernel
def test_filters_that_are_no_programs_are_left_out(node: Namespace, load: Load) -> None:
    load("nothing")
    add_hook(node, "eth1", "clsact")
    match = ["protocol", "ip", "u32", "match", "ip", "dst", "192.0.2.1/32", "flowid", "1:1"]
    tc(node, "filter", "add", "dev", "eth1", "ingress", *match)
    classic = ["protocol", "all", "bpf", "bytecode", "1,6 0 0 0,"]
    tc(node, "filter", "add", "dev", "eth1", "egress", *classic)
    eth1 = ifindex_of(node, "eth1")
    assert read(node, eth1) == {eth1: NOTHING}


@pytest.mark.kernel
@pytest.mark.parametrize(("given_name", "read_name"), [(b"odd\xff\xfe", "odd\ufffd\ufffd"), (None, "")])
def test_a_filter_with_an_odd_name_or_none_is_there(
    node: Namespace, load: Load, given_name: bytes | None, read_name: str
) -> None:
    fd, eth1 = load("nothing"), ifindex_of(node, "eth1")
    add_hook(node, "eth1", "clsact")
    attach_filter(node, fd, eth1, CLSACT_EGRESS, given_name)
    assert read(node, eth1) == {eth1: LinkPrograms((read_name,), ())}


@pytest.mark.kernel
def test_tcx_programs_of_both_hooks_are_named_sorted_and_once(
    node: Namespace, load: Load, attach_tcx: AttachTcx
) -> None:
    eth1, eth2, eth3 = (ifindex_of(node, name) for name in ("eth1", "eth2", "eth3"))
    for name, hook in (
        ("to_pod", BPF_TCX_EGRESS),
        ("from_pod", BPF_TCX_INGRESS),
        ("to_pod", BPF_TCX_INGRESS),
    ):
        attach_tcx(node, load(name), eth1, hook)
    attach_tcx(node, load(""), eth2, BPF_TCX_INGRESS)
    assert read(node, eth1, eth2, eth3) == {
        eth1: LinkPrograms((), ("from_pod", "to_pod")),
        eth2: LinkPrograms((), ("",)),
        eth3: NOTHING,
    }


@pytest.mark.kernel
def test_many_programs_on_one_hook_are_all_read(node: Namespace, load: Load, attach_tcx: AttachTcx) -> None:
    eth1, names = ifindex_of(node, "eth1"), [f"program_{number:02}" for number in range(63)]
    for name in names:
        attach_tcx(node, load(name), eth1, BPF_TCX_INGRESS)
    assert read(node, eth1)[eth1].tcx_programs == tuple(names)


@pytest.mark.kernel
def test_of_a_link_that_is_gone_nothing_is_said(node: Namespace, load: Load, attach_tcx: AttachTcx) -> None:
    attach_tcx(node, load("nothing"), ifindex_of(node, "eth1"), BPF_TCX_INGRESS)
    assert read(node, 2**31 - 1)[2**31 - 1].tcx_programs is None


@pytest.mark.kernel
def test_a_program_is_described_and_a_gone_one_is_none(load: Load) -> None:
    fd = load("described_15byt")
    program_id = next(
        number
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        if line.startswith("prog_id:")
        for number in [int(line.split()[1])]
    )
    assert program_id in list(programs.iter_program_ids())
    assert read_program(program_id) == programs.BpfProgram(program_id, 3, "described_15byt")
    assert read_program(2**31 - 1) is None


@pytest.mark.kernel
def test_no_descriptor_is_left_open(node: Namespace, load: Load, attach_tcx: AttachTcx) -> None:
    fd, eth1 = load("nothing"), ifindex_of(node, "eth1")
    attach_tcx(node, fd, eth1, BPF_TCX_EGRESS)
    add_hook(node, "eth1", "clsact")
    attach_filter(node, fd, eth1, CLSACT_INGRESS, b"nothing")
    read(node, eth1)
    before = list_descriptors()
    for _ in range(5):
        assert read(node, eth1, 2**31 - 1)[eth1] == LinkPrograms(("nothing",), ("nothing",))
    assert list_descriptors() <= before


# --- what is not asked, and refusals -------------------------------------------------------------------


class SilentKernel(NetlinkSocket):
    """Nobody may ask it anything, or it refuses with an errno."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def dump(self, request: Request) -> list[bytes]:
        assert self.number, f"asked to {request.operation}"
        raise kernel_error(self.number, "", request.operation)


def test_without_a_classifier_in_the_kernel_no_link_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {1: programs.BpfProgram(1, 8, "sd_devices"), 2: None}
    monkeypatch.setattr(programs, "iter_program_ids", lambda: iter(others))
    monkeypatch.setattr(programs, "read_program", others.__getitem__)
    monkeypatch.setattr(programs, "query_attached", None)
    warnings: list[str] = []
    assert read_link_programs(SilentKernel(), [7, 8], warnings) == {7: NOTHING, 8: NOTHING}
    assert read_link_programs(SilentKernel(), [], warnings) == {}
    assert warnings == []


def test_hundreds_of_programs_are_not_opened_for_a_few_links(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def open_other(program_id: int) -> programs.BpfProgram:
        opened.append(program_id)
        return programs.BpfProgram(program_id, 15, "sd_devices")

    monkeypatch.setattr(programs, "iter_program_ids", lambda: iter(range(1, 201)))
    monkeypatch.setattr(programs, "read_program", open_other)
    assert (programs._may_have_classifier(16, []), opened) == (True, [])
    assert (programs._may_have_classifier(1_000, []), len(opened)) == (False, 200)


@pytest.mark.kernel
def test_the_search_for_a_classifier_ends_at_the_first(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load("nothing")
    monkeypatch.setattr(programs, "_PROGRAMS_WORTH_OPENING", 100_000)  # this machine may have many others
    seen: list[programs.BpfProgram | None] = []

    def read_and_keep(program_id: int) -> programs.BpfProgram | None:
        seen.append(read_program(program_id))
        return seen[-1]

    monkeypatch.setattr(programs, "read_program", read_and_keep)
    assert programs._may_have_classifier(1, [])
    assert [program.type for program in seen if program].count(programs.BPF_PROG_TYPE_SCHED_CLS) == 1


@pytest.mark.kernel
def test_a_kernel_without_the_hook_has_no_tcx_programs(
    node: Namespace, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("nothing")
    monkeypatch.setattr(programs, "BPF_TCX_INGRESS", 0x7FFF)  # as TCX is to Linux before 6.6
    eth1, eth2 = ifindex_of(node, "eth1"), ifindex_of(node, "eth2")
    assert read(node, eth1, eth2) == {eth1: NOTHING, eth2: NOTHING}


@pytest.mark.kernel
def test_an_architecture_without_a_number_gives_no_fact(
    monkeypatch: pytest.MonkeyPatch, node: Namespace
) -> None:
    monkeypatch.setattr(programs, "_SYSCALL_NUMBER", None)
    eth1 = ifindex_of(node, "eth1")
    assert read(node, eth1) == {eth1: LinkPrograms((), None)}


@pytest.mark.kernel
def test_qdiscs_that_cannot_be_read_are_one_warning(
    load: Load, node: Namespace, attach_tcx: AttachTcx
) -> None:
    eth1, warnings = ifindex_of(node, "eth1"), list[str]()
    attach_tcx(node, load("nothing"), eth1, BPF_TCX_INGRESS)
    found = node.run(lambda: read_link_programs(SilentKernel(errno.ENOBUFS), [eth1], warnings))
    assert found == {eth1: LinkPrograms(None, ("nothing",))}
    assert warnings == ["read qdiscs: No buffer space available (ENOBUFS)"]


WITHOUT_CAPABILITIES = """
from dranet.kernel.netlink.socket import NetlinkSocket
from dranet.kernel.discovery.programs import read_link_programs
warnings = []
with NetlinkSocket.open() as rtnl:
    print(read_link_programs(rtnl, [1, 2], warnings), warnings)
"""


@pytest.mark.kernel
def test_without_the_capability_there_is_no_fact_and_one_warning() -> None:
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("no setpriv, or not root: no capability can be given up")
    give_up = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = subprocess.run(
        [*give_up, sys.executable, "-c", WITHOUT_CAPABILITIES], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    unread = "LinkPrograms(tc_filters=(), tcx_programs=None)"
    refusal = (
        "list BPF programs: Operation not permitted (EPERM): TCX programs are not shown; "
        "the driver lacks CAP_SYS_ADMIN: add it to the capabilities of its container"
    )
    assert done.stdout.strip() == f"{{1: {unread}, 2: {unread}}} ['{refusal}']"


@pytest.mark.parametrize("is_filtered", [True, False])
def test_a_profile_without_bpf_is_told_and_a_kernel_without_it_is_not(
    monkeypatch: pytest.MonkeyPatch, is_filtered: bool
) -> None:
    """Both answer alike: the driver's own profile refuses as a kernel that has no such call."""

    def refuse() -> Never:
        raise kernel_error(errno.ENOSYS, "", "list BPF programs", needs="SYS_ADMIN", call="bpf")

    every = sum(1 << number for number in CAPABILITIES.values())
    monkeypatch.setattr(rights, "read_rights", lambda: Rights(every, is_filtered, may_gain=False))
    monkeypatch.setattr(programs, "iter_program_ids", refuse)
    warnings: list[str] = []
    with NetlinkSocket.open() as rtnl:
        found = read_link_programs(rtnl, [1], warnings)
    assert found[1].tcx_programs is None
    assert any("let bpf through" in warning for warning in warnings) == is_filtered
    assert bool(warnings) == is_filtered


# --- off with them --------------------------------------------------------------------------------------

XDP_GENERIC, XDP_DRIVER = 1 << 1, 1 << 2


def remove(node: Namespace, ifname: str) -> None:
    with open_pod_side(node.netns) as pod:
        remove_programs(pod, ifindex_of(node, ifname), ifname)


def names(node: Namespace, ifname: str) -> tuple[str, ...]:
    with open_pod_side(node.netns) as pod:
        return read_program_names(pod, ifindex_of(node, ifname))


def shown_xdp(node: Namespace, ifname: str) -> set[str]:
    """Modes of the XDP programs that ``ip`` shows."""
    shown = json.dumps(node.read_raw("link", "show", "dev", ifname)[0].get("xdp", {}))
    return {mode for mode, number in (("driver", 1), ("generic", 2)) if f'"mode": {number}' in shown}


@pytest.mark.kernel
def test_filters_of_both_hooks_go_and_others_stay(node: Namespace, load: Load) -> None:
    fd, eth1, eth2 = load("nothing"), ifindex_of(node, "eth1"), ifindex_of(node, "eth2")
    for link in ("eth1", "eth2"):
        add_hook(node, link, "clsact")
    for ifindex, hook in ((eth1, CLSACT_INGRESS), (eth1, CLSACT_EGRESS), (eth2, CLSACT_INGRESS)):
        attach_filter(node, fd, ifindex, hook, b"prog.o:[tc]")
    attach_filter(node, fd, eth1, CLSACT_EGRESS, b"late.o:[tc]", chain=7)
    match = ["prio", "9", "protocol", "ip", "u32", "match", "ip", "dst", "192.0.2.1/32", "flowid", "1:1"]
    tc(node, "filter", "add", "dev", "eth1", "ingress", *match)
    assert names(node, "eth1") == (
        "tc ingress prog.o:[tc]",
        "tc egress prog.o:[tc]",
        "tc egress late.o:[tc]",
    )
    remove(node, "eth1")
    ingress = tc(node, "filter", "show", "dev", "eth1", "ingress")
    assert "u32" in ingress
    assert "bpf" not in ingress
    assert tc(node, "filter", "show", "dev", "eth1", "egress") == ""
    assert "clsact" in tc(node, "qdisc", "show", "dev", "eth1"), "the hooks themselves stay"
    assert "prog.o" in tc(node, "filter", "show", "dev", "eth2", "ingress"), "not ours to touch"
    assert names(node, "eth1") == ()


@pytest.mark.kernel
def test_tcx_programs_go_whether_a_bpf_link_holds_them_or_not(node: Namespace, bpf_loader: Loader) -> None:
    eth1, eth2 = ifindex_of(node, "eth1"), ifindex_of(node, "eth2")
    for hook in (BPF_TCX_INGRESS, BPF_TCX_EGRESS):
        bpf_loader.attach_by_link(node, bpf_loader.load("held"), eth1, hook)
        bpf_loader.attach_to_hook(node, bpf_loader.load("free"), eth1, hook)
        bpf_loader.attach_by_link(node, bpf_loader.load("other"), eth2, hook)
    assert names(node, "eth1") == (
        "tcx ingress held",
        "tcx ingress free",
        "tcx egress held",
        "tcx egress free",
    )
    remove(node, "eth1")
    for hook in (BPF_TCX_INGRESS, BPF_TCX_EGRESS):
        assert node.run(partial(programs.query_attached, eth1, hook)) == ()
    assert names(node, "eth2") == ("tcx ingress other", "tcx egress other")


@pytest.mark.kernel
@pytest.mark.parametrize("mode", [XDP_GENERIC, XDP_DRIVER], ids=["generic", "driver"])
@pytest.mark.parametrize("held", [True, False], ids=["bpf link", "netlink"])
def test_an_xdp_program_goes(node: Namespace, bpf_loader: Loader, mode: int, held: bool) -> None:
    fd, eth1 = bpf_loader.load("drop_all", XDP), ifindex_of(node, "eth1")
    if held:
        bpf_loader.attach_by_link(node, fd, eth1, BPF_XDP, mode)
    else:
        set_xdp(node, eth1, fd, mode)
    assert shown_xdp(node, "eth1") == {"generic" if mode == XDP_GENERIC else "driver"}
    assert names(node, "eth1") == ("xdp drop_all",)
    remove(node, "eth1")
    assert shown_xdp(node, "eth1") == set()
    assert names(node, "eth1") == ()


def set_xdp(node: Namespace, ifindex: int, fd: int, mode: int) -> None:
    with node.netns.open_netlink() as rtnl:
        xdp = nested(43, attribute_u32(1, fd), attribute_u32(3, mode))
        rtnl.request(set_link_request(ifindex, xdp, operation="set XDP of", link="eth1"))


@pytest.mark.kernel
def test_programs_that_came_along_with_the_move_go(
    node: Namespace, pod: Namespace, bpf_loader: Loader
) -> None:
    eth1 = ifindex_of(node, "eth1")
    bpf_loader.attach_by_link(node, bpf_loader.load("from_node"), eth1, BPF_TCX_INGRESS)
    bpf_loader.attach_by_link(node, bpf_loader.load("xdp_of_node", XDP), eth1, BPF_XDP, XDP_GENERIC)
    node.ip("link", "set", "eth1", "netns", pod.name)
    assert names(pod, "eth1") == ("tcx ingress from_node", "xdp xdp_of_node")
    remove(pod, "eth1")
    assert names(pod, "eth1") == ()
    remove(pod, "eth1")


@pytest.mark.kernel
def test_an_xdp_link_that_may_be_another_pods_is_left_and_refused(
    node: Namespace, make_namespace: Callable[..., Namespace], bpf_loader: Loader
) -> None:
    """The same program by BPF links on interfaces of one index in two namespaces."""
    fd, eth1, other = bpf_loader.load("twice", XDP), ifindex_of(node, "eth1"), make_namespace()
    other.ip("link", "add", "twin", "index", str(eth1), "type", "veth", "peer", "name", "end")
    for namespace in (node, other):
        bpf_loader.attach_by_link(namespace, fd, eth1, BPF_XDP, XDP_GENERIC)
    with pytest.raises(KernelError, match="one of 2 BPF links") as refusal:
        remove(node, "eth1")
    assert (refusal.value.reason, refusal.value.operation) == (Reason.ATTACH_FAILED, "remove-programs")
    assert names(node, "eth1") == names(other, "twin") == ("xdp twice",)


@pytest.mark.kernel
def test_a_program_that_is_back_at_once_is_refused(
    node: Namespace, bpf_loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may watch the link."""
    bpf_loader.attach_by_link(node, bpf_loader.load("clings"), ifindex_of(node, "eth1"), BPF_TCX_EGRESS)
    monkeypatch.setattr(programs, "detach_link", lambda _: None)
    with pytest.raises(KernelError, match="still there: tcx egress clings") as refusal:
        remove(node, "eth1")
    assert (refusal.value.errno, refusal.value.link) == (errno.EBUSY, "eth1")


@pytest.mark.kernel
def test_a_kernel_without_tcx_has_nothing_to_remove(node: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "_TCX_HOOKS", {0x7FFF: "ingress"})  # as TCX is to Linux before 6.6
    remove(node, "eth1")
    assert names(node, "eth1") == ()


@pytest.mark.kernel
def test_who_may_not_ask_for_programs_reads_the_rest_but_removes_nothing(
    node: Namespace, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_hook(node, "eth1", "clsact")
    attach_filter(node, load("nothing"), ifindex_of(node, "eth1"), CLSACT_INGRESS, b"seen")

    def refuse(*_: int) -> tuple[programs.Attached, ...]:
        raise KernelError("EPERM", errno=errno.EPERM, operation="read BPF programs", hint="the mend")

    monkeypatch.setattr(programs, "query_attached", refuse)
    assert names(node, "eth1") == ("tc ingress seen",)
    with pytest.raises(KernelError, match=r"remove BPF programs from eth1: EPERM \(the mend\)"):
        remove(node, "eth1")


@pytest.mark.kernel
def test_removing_leaves_no_descriptor_open(node: Namespace, bpf_loader: Loader) -> None:
    eth1 = ifindex_of(node, "eth1")
    remove(node, "eth1")
    bpf_loader.attach_by_link(node, bpf_loader.load("held"), eth1, BPF_TCX_INGRESS)
    bpf_loader.attach_to_hook(node, bpf_loader.load("free"), eth1, BPF_TCX_INGRESS)
    bpf_loader.attach_by_link(node, bpf_loader.load("xdp", XDP), eth1, BPF_XDP, XDP_GENERIC)
    before = list_descriptors()
    remove(node, "eth1")
    assert list_descriptors() <= before
