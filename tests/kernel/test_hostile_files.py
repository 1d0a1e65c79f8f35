"""sysfs and procfs as hostile input: whatever stands there, facts come back and the log is clear."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from dranet.kernel.discovery.hardware import Hardware, HardwareReader
from dranet.kernel.sysfs.files import MOST_ENTRIES, MOST_WARNINGS, PseudoFiles, parse_number
from tests.kernel.trees import Tree
from tests.support.processor_time import measure

ODD_NAME = os.fsdecode(b"odd\xff\xfename")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def put(tree: Tree, path: str, content: bytes) -> None:
    place = tree.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def told(tree: Tree, ending: str) -> None:
    """Exactly one warning, which is one printable line and ends so."""
    (warning,) = tree.warnings
    assert warning.isprintable()
    assert warning.endswith(ending), warning


# --- one attribute -------------------------------------------------------------------------------------


def test_an_attribute_of_more_than_a_page_is_no_fact(tree: Tree) -> None:
    put(tree, "speed", b"1" * 4096)
    assert tree.files.text("speed") == "1" * 4096
    assert tree.warnings == []
    put(tree, "speed", b"1" * 4097)
    assert tree.files.text("speed") == ""
    told(tree, "/speed: left out: more than the 4096 bytes that an attribute can have")


def test_an_attribute_that_never_ends_is_read_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def endless(_: int, size: int) -> bytes:
        reads.append(size)
        return b"x" * size

    put(tree, "driver", b"")
    monkeypatch.setattr(os, "read", endless)
    assert tree.files.text("driver") == ""
    assert reads == [4097]


def test_a_long_file_that_never_ends_is_cut(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tree, "devices", b"")
    monkeypatch.setattr(os, "read", lambda _fd, size: b"x" * min(size, 1000))
    assert tree.files.whole_text("devices") == "x" * 262144
    told(tree, "/devices: cut: more than 262144 bytes")


def test_a_long_file_that_comes_in_pieces_is_whole(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As procfs gives it."""
    real_read = os.read
    put(tree, "devices", b"0123456789" * 1000)
    monkeypatch.setattr(os, "read", lambda fd, size: real_read(fd, min(size, 700)))
    assert tree.files.whole_text("devices") == "0123456789" * 1000


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "socket"])
def test_what_is_no_file_is_neither_read_nor_waited_for(tree: Tree, kind: str) -> None:
    place = tree.root / "vendor"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        os.mknod(place, 0o140644)
    assert tree.files.text("vendor") == ""
    assert tree.files.whole_text("vendor") == ""
    expected = "No such device or address" if kind == "socket" else "not a file"
    assert all(warning.endswith(f"/vendor: {expected}") for warning in tree.warnings)
    assert len(tree.warnings) == (0 if kind == "socket" else 2), "opening a socket file is ENXIO: no fact"


def test_a_loop_of_links_is_a_warning(tree: Tree) -> None:
    (tree.root / "class").mkdir()
    (tree.root / "class/net").symlink_to("net")
    assert tree.files.text("class/net/eth0/speed") == ""
    assert tree.files.entries("class/net") == []
    assert tree.files.links("class/net", ["eth0"]) == {}
    assert tree.files.has("class/net") is False
    assert len(tree.warnings) == 3
    assert all("Too many levels of symbolic links" in warning for warning in tree.warnings)


def test_a_home_that_loops_is_found_all_the_same(tree: Tree) -> None:
    tree.link("class/infiniband/mlx5_0", "mlx5_1")
    tree.link("class/infiniband/mlx5_1", "mlx5_0")
    homes = tree.files.homes("class/infiniband", ["mlx5_0", "mlx5_1"])
    assert set(homes) == {"mlx5_0", "mlx5_1"}


def test_bytes_that_are_no_text_are_replaced_and_told(tree: Tree) -> None:
    put(tree, "driver", b"ml\xff\xfex5\0core\x1b[31m\nsecond")
    text = tree.files.text("driver")
    assert text == "ml\ufffd\ufffdx5\ufffdcore\ufffd[31m\ufffdsecond"
    told(tree, r"/driver: odd bytes in the text: 'ml\udcff\udcfex5\x00core\x1b[31m\nsecond'")


def test_zero_bytes_and_white_space_around_a_text_are_nothing_odd(tree: Tree) -> None:
    put(tree, "driver", b" \tmlx5_core\0\0\n\n")
    assert tree.files.text("driver") == "mlx5_core"
    put(tree, "alias", "Überlink №1".encode())
    assert tree.files.text("alias") == "Überlink №1"
    assert tree.warnings == []


def test_what_may_not_be_read_is_a_warning(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so that the refusal is played."""

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for call in ("open", "scandir"):
        monkeypatch.setattr(os, call, refuse)
    assert (tree.files.text("vendor"), tree.files.whole_text("devices")) == ("", "")
    assert (tree.files.entries("class"), tree.files.links("class", ["a"])) == ([], {})
    assert tree.warnings == [
        f"{tree.root}/{path}: Permission denied" for path in ("vendor", "devices", "class", "class")
    ]


# --- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "base", "number"),
    [
        ("42", 10, 42),
        ("-1", 10, None),
        ("+7", 10, 7),
        ("0x8086", 16, 0x8086),
        ("8086", 16, 0x8086),
        ("-0x1", 16, None),
        ("9223372036854775807", 10, (1 << 63) - 1),
        ("9223372036854775808", 10, None),
        ("9" * 4000, 10, None),
        ("0x" + "f" * 4000, 16, None),
        ("1_000", 10, None),
        ("²", 10, None),
        ("٣", 10, None),
        ("12 34", 10, None),
        ("0x", 16, None),
        ("1e9", 10, None),
    ],
)
def test_only_what_the_kernel_prints_is_a_number(
    tree: Tree, content: str, base: int, number: int | None
) -> None:
    put(tree, "n", content.encode())
    assert tree.files.integer("n", base=base) == number
    assert len(tree.warnings) == (number is None)


def test_a_number_outside_its_bounds_is_no_fact(tree: Tree) -> None:
    put(tree, "n", b"-2")
    assert tree.files.integer("n", least=-1) is None
    told(tree, "/n: not from -1 to 9223372036854775807: '-2'")


@pytest.mark.parametrize("text", ["", "-1", "+1", "01", "00", "²", "٣", " 1", "1\n", "9999999999", "1x"])
def test_what_is_no_plain_number_has_none(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "content", ["231", "231:", ":1", "231:x", "-1:2", "²:1", "99999:1", "1:99999999", "1:2:3"]
)
def test_what_is_no_device_number_is_a_warning(tree: Tree, content: str) -> None:
    put(tree, "dev", content.encode())
    assert tree.files.char_device("dev", "/dev/x") is None
    told(tree, f"/dev: not MAJOR:MINOR: {content!r}")


# --- directories ---------------------------------------------------------------------------------------


@contextmanager
def crowded(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Every directory lists so many entries."""

    class Entry:
        def __init__(self, number: int) -> None:
            self.name = f"veth{number}"

    @contextmanager
    def scandir(_: str) -> Iterator[Iterator[Entry]]:
        yield (Entry(number) for number in range(count))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        yield


def test_a_directory_of_a_hundred_thousand_entries_is_bounded(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crowded(monkeypatch, 100_000):
        assert len(tree.files.entries("class/net")) == MOST_ENTRIES
    told(tree, "/class/net: more than 32768 entries: only so many are read")


def test_ten_thousand_links_fit(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    with crowded(monkeypatch, 10_000):
        assert len(tree.files.entries("class/net")) == 10_000
    assert tree.warnings == []


def test_a_folder_that_cannot_be_looked_at_is_none(tree: Tree) -> None:
    assert tree.files.has("x" * 5000) is False
    assert tree.files.text("x" * 5000) == ""
    told(tree, "...")


def test_a_name_that_is_not_utf8_is_left_out_and_told(tree: Tree) -> None:
    (tree.root / "class").mkdir()
    for name in ("good", ODD_NAME):
        (tree.root / "class" / name).mkdir()
    assert tree.files.entries("class") == ["good"]
    told(tree, r"/class/odd\udcff\udcfename: left out: not UTF-8: 'odd\udcff\udcfename'")


def test_a_link_to_a_name_that_is_not_utf8_is_none(tree: Tree) -> None:
    tree.link("driver", f"../{ODD_NAME}")
    assert tree.files.link("driver") == ""
    assert len(tree.warnings) == 1
    assert tree.warnings[0].isprintable()


def test_numbers_in_names_are_taken_as_the_kernel_writes_them(tree: Tree) -> None:
    for name in (
        "node0",
        "node10",
        "node2",
        "node02",
        "node-1",
        "node²",
        "node",
        "nodes",
        "node" + "9" * 200,
    ):
        (tree.root / name).mkdir()
    assert tree.files.numbered("", "node") == [0, 2, 10]


def test_files_that_vanish_between_listing_and_reading_are_no_facts(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.function("pci0000:00/0000:00:03.0", "0x020000", "0x15b3", "0x1021")
    real_entries = PseudoFiles.entries

    def entries(files: PseudoFiles, path: str) -> list[str]:
        return (
            [*real_entries(files, path), "0000:00:04.0"] if path.endswith("pci/devices") else ["3", "uverbs3"]
        )

    monkeypatch.setattr(PseudoFiles, "entries", entries)
    hardware, warnings = scan(tree)
    assert [function.address for function in hardware.pci_functions] == ["0000:00:03.0"]
    assert [w for w in warnings if "pci.ids" not in w] == [
        f"{tree.root}/bus/pci/devices/0000:00:04.0: no class; the function is left out"
    ]


# --- warnings ------------------------------------------------------------------------------------------


def test_a_warning_is_one_printable_line_of_bounded_length(tree: Tree) -> None:
    tree.files.warn("a\nb\x1b", "x" * 10_000)
    (warning,) = tree.warnings
    assert warning.startswith(rf"{tree.root}/a\nb\x1b: xxx")
    assert (len(warning), warning[-3:]) == (400, "...")


def test_five_hundred_warnings_are_enough(tree: Tree) -> None:
    for number in range(10_000):
        tree.files.warn(str(number), "odd")
    assert len(tree.warnings) == MOST_WARNINGS + 1
    assert tree.warnings[-1] == f"{tree.root}: more problems than these 500 lines"


def test_a_tree_of_rubbish_gives_a_bounded_log_and_takes_a_bounded_time(tree: Tree) -> None:
    (tree.root / "bus/pci/devices").mkdir(parents=True)
    for number in range(3000):
        put(
            tree,
            f"bus/pci/devices/0000:{number // 256:02x}:{number % 32:02x}.{number // 32 % 8}/class",
            b"\xff",
        )
    reader, again = HardwareReader(tree.root, tree.root), list[str]()

    def read_again() -> None:
        reader.read([])
        reader.read(again, frozenset({"0000:00:00.0"}))

    hardware, warnings = scan(tree)
    assert measure(read_again) < 6000
    assert hardware.pci_functions == ()
    assert len(warnings) <= MOST_WARNINGS + 1
    assert len(again) <= MOST_WARNINGS


# --- whole trees ---------------------------------------------------------------------------------------

FOLDERS = {
    "bus/pci/devices/0000:21:00.0": (
        "class", "vendor", "device", "subsystem_vendor", "numa_node", "current_link_speed", "max_link_width",
        "sriov_totalvfs", "sriov_numvfs", "sriov_offset", "sriov_stride", "driver", "physfn", "virtfn0",
        "unique_id", "product_name", "device_type", "drm/renderD128/dev", "accel/accel0/dev",
    ),
    "bus/pci/devices/0000:21:10.0": ("class", "vendor", "device", "physfn"),
    "class/infiniband/mlx5_0": (
        "node_type", "node_guid", "sys_image_guid", "board_id", "fw_ver", "parent", "device", "ports/1/state",
        "ports/1/phys_state", "ports/1/link_layer", "ports/1/rate", "ports/1/lid", "ports/1/gids/0",
        "ports/1/gid_attrs/types/0", "ports/1/gid_attrs/ndevs/0", "ports/1/pkeys/0",
    ),
    "class/infiniband_verbs/uverbs0": ("ibdev", "dev"),
    "class/misc/rdma_cm": ("dev",),
    "class/kfd/kfd": ("dev",),
    "class/accel/accel_controlD0": ("dev",),
    "class/dmi/id": ("sys_vendor", "product_name"),
    "devices/system/node/node0": ("cpulist", "distance"),
    "devices/system/cpu/cpu0/topology": ("physical_package_id",),
    "driver/nvidia/gpus/0000:21:00.0": ("information",),
    ".": ("devices.txt",),
}  # fmt: skip

PATHS = [f"{folder}/{name}" for folder, names in FOLDERS.items() for name in names]

SENSIBLE = st.sampled_from(
    [
        b"0x020000", b"0x030200", b"0x120000", b"0x00ff00", b"0x0b4000",
        b"0x15b3", b"0x10de", b"0x1002", b"0x1da3", b"0x1d94", b"0xffff",
        b"-1", b"0", b"1", b"128", b"10 21", b"0-3", b"231:192", b"4: ACTIVE",
        b"InfiniBand", b"Ethernet", b"mlx5_0", b"eth0", b"RoCE v2", b"Unknown", b"32.0 GT/s PCIe",
        b"fe80:0000:0000:0000:0c42:a103:0065:7b22", b"0c42:a103:0021:1000",
        b"Model: H100\nGPU UUID: GPU-1\nDevice Minor: 3\n",
    ]
)  # fmt: skip

CONTENT = SENSIBLE | st.binary(max_size=40) | st.just(b"9" * 5000) | st.just(b"0x" + b"f" * 4000)

TARGETS = st.sampled_from(
    [
        b".",
        b"..",
        b"../0000:21:00.0",
        b"../../../devices/pci0000:20/0000:20:00.0/0000:21:00.0",
        b"loop",
        b"/dev/zero",
    ]
) | st.binary(min_size=1, max_size=30).filter(lambda target: b"\0" not in target)

PLACES = st.one_of(
    CONTENT.map(lambda content: ("file", content)),
    TARGETS.map(lambda target: ("link", target)),
    st.sampled_from([("fifo", b""), ("folder", b"")]),
)


def build(root: Path, places: dict[str, tuple[str, bytes]]) -> None:
    for path, (kind, content) in places.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            place.write_bytes(content)
        elif kind == "link":
            place.symlink_to(os.fsdecode(content))
        elif kind == "fifo":
            os.mkfifo(place)
        else:
            place.mkdir()


def scan(tree: Tree) -> tuple[Hardware, list[str]]:
    warnings: list[str] = []
    return HardwareReader(tree.root, tree.root).read(warnings), warnings


def is_sound(hardware: Hardware, warnings: list[str]) -> None:
    """It can be logged, stored and sent."""
    assert all(warning.isprintable() for warning in warnings)
    document = to_builtins(hardware)
    json.dumps(document, ensure_ascii=False).encode()
    assert all(abs(number) < 1 << 63 for number in numbers(document))


def numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int):
        yield value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    places=st.dictionaries(st.sampled_from(PATHS), PLACES, min_size=10, max_size=len(PATHS)),
    names=st.lists(st.binary(min_size=1, max_size=20), max_size=4),
)
def test_whatever_stands_in_the_files_facts_come_back(
    places: dict[str, tuple[str, bytes]], names: list[bytes]
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        build(root, places)
        for parent in ("bus/pci/devices", "class/infiniband", "class/infiniband/mlx5_0/ports"):
            add_odd_names(root / parent, names)
        warnings: list[str] = []
        reader = HardwareReader(root, root, root / "absent")
        hardware = reader.read(warnings)
        is_sound(hardware, warnings)
        again: list[str] = []
        changed = {"0000:21:00.0", "0000:21:10.0", "mlx5_0", "renderD128"}
        assert reader.read(again, changed, {"eth0", "mlx5_0"}) == hardware, "nothing changed between the two"
        assert sorted(again) == sorted(warnings)


def add_odd_names(folder: Path, names: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if b"/" not in name and b"\0" not in name and name not in (b".", b".."):
            (folder / os.fsdecode(name)).mkdir(exist_ok=True)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace"))
)
def test_whatever_the_nvidia_driver_and_the_device_list_say_facts_come_back(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        tree = Tree(root)
        tree.function("pci0000:20/0000:21:00.0", "0x030200", "0x10de", "0x2330")
        put(
            tree, "driver/nvidia/gpus/0000:21:00.0/information", b"Model: " + content + b"\nDevice Minor: 3\n"
        )
        put(tree, "proc/devices", content + b"\n508 nvidia-uvm\n" + content)
        warnings: list[str] = []
        hardware = HardwareReader(root, root, root / "absent").read(warnings)
        is_sound(hardware, warnings)
        assert hardware.gpus[0].model.isprintable()
