"""Names from pci.ids, in small databases of the documented format."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from dranet.kernel.discovery import pci
from dranet.kernel.discovery.hardware import HardwareReader
from dranet.kernel.discovery.pci import PciIds, PciName
from tests.kernel.trees import Tree, write_switch
from tests.support.processor_time import measure

DATABASE = """\
# a comment
# vendor  name

0014  First vendor
	7a00  First device
# a comment between devices
10de  NVIDIA Corporation
	2330  GH100[H100 SXM5 80GB]
		10de 16c1  a subsystem, which is no device
	2331  GH100 [H100 PCIe]
15b3  Mellanox Technologies
	1021  MT2910 Family [ConnectX-7]
1d0f  Amazon.com, Inc.
	efa1  Elastic Fabric Adapter (EFA)
cafe  Société Générale — Matériel
	1000  two  spaces inside, and one at the end\x20
C 03  Display controller
	00  VGA compatible controller
C 10  15b3 in the wrong place
	1021  no device: a class
"""

CONNECTX7, H100, EFA, UNKNOWN_DEVICE, UNKNOWN_VENDOR = (
    (0x15B3, 0x1021),
    (0x10DE, 0x2330),
    (0x1D0F, 0xEFA1),
    (0x10DE, 0x16C1),
    (0xBEEF, 1),
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "pci.ids"
    path.write_text(DATABASE)
    return path


def read(path: Path, *wanted: tuple[int, int]) -> tuple[list[PciName], list[str]]:
    warnings: list[str] = []
    names = PciIds(path).read_names(wanted, warnings)
    return [names[ids] for ids in wanted], warnings


def test_names_are_exactly_the_text_after_the_id(database: Path) -> None:
    names, warnings = read(database, CONNECTX7, EFA, H100, (0xCAFE, 0x1000))
    assert names == [
        PciName("Mellanox Technologies", "MT2910 Family [ConnectX-7]"),
        PciName("Amazon.com, Inc.", "Elastic Fabric Adapter (EFA)"),
        PciName("NVIDIA Corporation", "GH100[H100 SXM5 80GB]"),
        PciName("Société Générale — Matériel", "two  spaces inside, and one at the end "),
    ]
    assert warnings == []


def test_an_unknown_id_has_no_name_and_a_subsystem_is_no_device(database: Path) -> None:
    names, warnings = read(database, UNKNOWN_DEVICE, UNKNOWN_VENDOR)
    assert names == [PciName("NVIDIA Corporation", ""), PciName("", "")]
    assert warnings == []


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    (tmp_path / "pci.ids").write_text("15b3  Mellanox Technologies\n\t1021  ConnectX-7")
    assert read(tmp_path / "pci.ids", CONNECTX7)[0] == [PciName("Mellanox Technologies", "ConnectX-7")]


def test_a_compressed_database_gives_the_same_names(database: Path, tmp_path: Path) -> None:
    packed = tmp_path / "pci.ids.gz"
    packed.write_bytes(gzip.compress(database.read_bytes()))
    assert read(packed, CONNECTX7, H100, UNKNOWN_DEVICE) == read(database, CONNECTX7, H100, UNKNOWN_DEVICE)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64])
def test_names_do_not_depend_on_where_the_file_is_cut_into_pieces(
    database: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    whole = read(database, CONNECTX7, H100, EFA, UNKNOWN_DEVICE)
    monkeypatch.setattr(pci, "_PIECE_BYTES", piece_bytes)
    assert read(database, CONNECTX7, H100, EFA, UNKNOWN_DEVICE) == whole


def test_the_file_is_read_again_only_for_a_new_id_or_a_changed_file(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    real_open = os.open

    def count(path: str, *rest: int) -> int:
        reads.append(path)
        return real_open(path, *rest)

    monkeypatch.setattr(os, "open", count)
    ids, warnings = PciIds(database), list[str]()
    assert ids.read_names({CONNECTX7, UNKNOWN_VENDOR}, warnings)[CONNECTX7].device
    ids.read_names({CONNECTX7}, warnings)
    ids.read_names({UNKNOWN_VENDOR}, warnings)
    assert len(reads) == 1, "also an id that is not in the file is known"
    assert ids.read_names({CONNECTX7, EFA}, warnings)[EFA].vendor == "Amazon.com, Inc."
    assert len(reads) == 2
    database.write_text(DATABASE.replace("Amazon.com, Inc.", "Amazon"))
    assert ids.read_names({CONNECTX7, EFA}, warnings)[EFA].vendor == "Amazon"
    assert len(reads) == 3
    assert warnings == []


def test_nothing_wanted_reads_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "absent") == ([], [])


def test_a_missing_database_is_one_warning_that_names_the_package(tmp_path: Path) -> None:
    ids, warnings = PciIds(tmp_path / "absent"), list[str]()
    assert ids.read_names({EFA}, warnings) == {EFA: PciName()}
    (warning,) = warnings
    assert repr(str(tmp_path / "absent")) in warning
    assert "Debian package pci.ids" in warning
    (tmp_path / "absent").write_text(DATABASE)
    assert ids.read_names({EFA}, warnings)[EFA].device == "Elastic Fabric Adapter (EFA)"
    assert warnings == [warning], "it is not missing any more"


def test_the_variable_of_dranet_names_the_database(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCIDB_PATH", str(database))
    assert PciIds().read_names({EFA}, [])[EFA].vendor == "Amazon.com, Inc."
    assert PciIds(database.parent / "absent").read_names({EFA}, [])[EFA].vendor == "", (
        "a setting goes before it"
    )
    monkeypatch.setenv("PCIDB_PATH", "/absent")
    warnings: list[str] = []
    PciIds().read_names({EFA}, warnings)
    assert "'/absent': vendors" in warnings[0], "and before the places of the distribution"


def test_the_places_of_the_distributions_are_tried_in_order(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PCIDB_PATH", raising=False)
    monkeypatch.setattr(pci, "_DEFAULT_PATHS", (database.parent / "absent", database))
    assert PciIds().read_names({EFA}, [])[EFA].vendor == "Amazon.com, Inc."


def test_functions_get_their_names(database: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    write_switch(tree)
    named = HardwareReader(tree.root, tree.root, database).read([]).pci_functions
    assert [(f.vendor_name, f.device_name) for f in named] == [
        ("Mellanox Technologies", "MT2910 Family [ConnectX-7]"),
        ("NVIDIA Corporation", "GH100[H100 SXM5 80GB]"),
    ]
    assert {f.vendor_name for f in tree.functions().values()} == {""}


# --- hostile databases ---------------------------------------------------------------------------------


def hostile(tmp_path: Path, content: bytes) -> tuple[PciName, list[str], float]:
    path = tmp_path / "pci.ids"
    path.write_bytes(content)
    results: list[tuple[list[PciName], list[str]]] = []
    took = measure(lambda: results.append(read(path, CONNECTX7)))
    (((name,), warnings),) = results
    assert all(warning.isprintable() for warning in warnings)
    return name, warnings, took


def test_a_line_without_end_hides_nothing_around_it(tmp_path: Path) -> None:
    entry = b"15b3  Mellanox Technologies\n\t1021  ConnectX-7\n"
    name, warnings, _ = hostile(tmp_path, b"\t" + b"x" * 3_000_000 + b"\n" + entry)
    assert (name, warnings) == (PciName("Mellanox Technologies", "ConnectX-7"), [])


def test_a_name_that_is_too_long_is_none(tmp_path: Path) -> None:
    name, warnings, _ = hostile(tmp_path, b"15b3  " + b"x" * 3_000_000 + b"\n\t1021  ConnectX-7\n")
    assert (name, warnings) == (PciName("", "ConnectX-7"), [])


def test_odd_bytes_in_a_name_are_replaced(tmp_path: Path) -> None:
    name, _, _ = hostile(tmp_path, b"15b3  Mell\xff\xfe\0anox\x1b[31m\r\n\t1021  ok\r\n")
    assert name == PciName("Mell\ufffd\ufffd\ufffdanox\ufffd[31m", "ok")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1_000_000,
        bytes(range(256)) * 4_000,
        b"\n" * 1_000_000,
        b"15b3" * 500_000,
        b"\n15b3",
        b"\x1f\x8b",
    ],
)
def test_a_file_that_is_no_database_gives_no_names_and_no_crash(tmp_path: Path, content: bytes) -> None:
    name, _, took = hostile(tmp_path, content)
    assert name == PciName()
    assert took < 1000


@pytest.mark.parametrize(
    "content",
    [
        b"x" * (9 << 20),
        b"\n" * (9 << 20),
        gzip.compress(b"\0" * (64 << 20), 9),
    ],
)
def test_a_file_that_never_ends_is_left_after_eight_megabytes(tmp_path: Path, content: bytes) -> None:
    name, warnings, took = hostile(tmp_path, content)
    assert name == PciName()
    assert len(warnings) == 1
    assert "only the first 8388608 bytes are read" in warnings[0]
    assert took < 4000


def test_a_torn_compressed_file_is_a_warning_and_keeps_what_it_gave(tmp_path: Path) -> None:
    noise = os.urandom(300_000)
    packed = gzip.compress(b"15b3  Mellanox Technologies\n\t1021  ConnectX-7\n\nbeef  x\n" + noise)
    path = tmp_path / "pci.ids"
    path.write_bytes(packed[: len(packed) // 2])
    (found, unknown), warnings = read(path, CONNECTX7, (0xBEEE, 1))
    assert (found.device, unknown) == ("ConnectX-7", PciName())
    assert len(warnings) == 1
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\0" + noise)
    assert len(read(path, CONNECTX7)[1]) == 1


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read(tmp_path / "fifo", EFA) == (
        [PciName()],
        [f"{str(tmp_path / 'fifo')!r}: not a file: some vendors and devices may have no names"],
    )
    (names, warnings) = read(tmp_path, EFA)
    assert (names, len(warnings)) == ([PciName()], 1)
