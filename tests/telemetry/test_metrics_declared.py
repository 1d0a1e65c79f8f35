"""Every metric, as it is declared: the conventions of Prometheus, before anything is scraped."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dranet.kernel.counters import PORT_COUNTERS
from dranet.telemetry.recorder import Declared, Exposition, Group, Kind, format_labels
from tools.pages.metrics import list_declared, metrics_page

DRANETS = frozenset({"dranet_driver_published_devices_total"})
"""A gauge in spite of its name; its dashboards want it."""

IDENTITIES = frozenset(
    {"namespace", "pod", "claim", "device", "interface", "port", "pci_address", "rdma_device"}
)
"""Labels that name something; series with them are read, and end with it."""

NO_BASE_UNITS = ("_milliseconds", "_ms", "_mbps", "_bits", "_kilobytes", "_percent", "_minutes", "_mb", "_kb")

DECLARED = list_declared()


@pytest.mark.parametrize("one", DECLARED, ids=lambda one: one.name)
def test_each_metric_keeps_to_the_conventions(one: Declared) -> None:
    assert re.fullmatch(r"dranet_[a-z][a-z0-9_]*[a-z0-9]", one.name)
    assert one.help.strip()
    assert "`" not in one.help
    assert "](" not in one.help
    assert not one.name.endswith(NO_BASE_UNITS)
    if one.name not in DRANETS:
        assert one.name.endswith("_total") == (one.kind is Kind.COUNTER)
    assert not one.name.endswith(("_count", "_sum", "_bucket", "_created"))
    if one.kind is Kind.HISTOGRAM:
        assert one.unit == "seconds"
    for label, meaning in one.labels.items():
        assert re.fullmatch(r"[a-z][a-z_]*", label)
        assert label not in ("le", "quantile", "job", "instance", "node")
        assert meaning.strip()


@pytest.mark.parametrize("one", DECLARED, ids=lambda one: one.name)
def test_a_help_text_can_be_read_alone_as_in_a_metric_browser(one: Declared) -> None:
    assert one.help[0].isupper() or one.help[0].isdigit()
    assert len(one.help.split()) >= 4
    assert len(one.help) <= 190
    assert not one.help.endswith(".")
    if one.unit:
        assert one.unit.split("_")[0].removesuffix("s") in one.help.lower(), "its unit"


def test_each_name_is_declared_once() -> None:
    assert [name for name, count in Counter(one.name for one in DECLARED).items() if count > 1] == []


def test_what_is_recorded_names_nothing_that_comes_and_goes() -> None:
    read = {Group.DEVICES, Group.RDMA, Group.PODS}
    assert [one.name for one in DECLARED if one.group not in read and IDENTITIES & one.labels.keys()] == []


def test_series_of_devices_do_not_name_pods() -> None:
    of_devices = [one for one in DECLARED if one.group in (Group.DEVICES, Group.RDMA)]
    assert [one.name for one in of_devices if {"namespace", "pod", "claim"} & one.labels.keys()] == []


def test_each_word_of_a_port_has_a_metric() -> None:
    ports = [one for one in DECLARED if one.group is Group.RDMA and one.kind is Kind.COUNTER]
    assert len(ports) == len(PORT_COUNTERS)


def test_the_page_has_no_empty_table() -> None:
    page = metrics_page()
    for group in Group:
        rows = page.partition(f"## {group}\n")[2].partition("\n## ")[0]
        assert rows.count("\n| `dranet_") > 2, group


NAMES = st.sampled_from(("device", "pod", "namespace", "interface"))
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
LABELS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=3).map(
    lambda labels: dict(sorted(labels.items()))
)
NUMBERS = st.one_of(st.integers(0, 2**64 - 1), st.floats(0, 1e300))


@given(st.lists(st.tuples(LABELS, NUMBERS), max_size=8))
def test_the_client_librarys_parser_reads_back_what_was_written(
    rows: list[tuple[dict[str, str], float]],
) -> None:
    declared = Declared("dranet_x_bytes", Kind.GAUGE, 'a "text" with \\ and [a link](x)', Group.DEVICES)
    out = Exposition()
    out.add(declared, ((format_labels(labels), value) for labels, value in rows))
    families = list(text_string_to_metric_families(out.body.decode()))
    wanted = {tuple(sorted(labels.items())): float(value) for labels, value in rows}
    found = {
        tuple(sorted(sample.labels.items())): float(sample.value)
        for family in families
        for sample in family.samples
    }
    assert found == wanted
    assert out.size >= len(wanted)
    assert [family.documentation for family in families] == (['a "text" with \\ and a link'] if rows else [])


def test_an_empty_value_is_no_label_and_a_family_without_samples_no_line() -> None:
    assert format_labels({"device": "net", "interface": ""}) == '{device="net"}'
    assert format_labels({"interface": ""}) == ""
    out = Exposition()
    out.add(DECLARED[0], [])
    assert out.body == b""
