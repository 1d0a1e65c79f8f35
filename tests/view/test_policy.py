"""The operator's policy from settings and file: refused at start, followed later, the last good one kept."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dranet.cel import engine
from dranet.errors import SettingsError
from dranet.inventory.policy import AttributeRules, Policy
from dranet.model.device import Device, DeviceKind
from dranet.settings import PublishGpus, Settings, load_settings
from dranet.view.policy import PolicySource, load_policy
from dranet.view.settings_file import MAX_FILE_BYTES

ETH1 = Device("eth1", DeviceKind.NIC, {"dra.net/ifName": "eth1", "dra.net/type": "device"}, ifname="eth1")


def settings(**flags: str) -> Settings:
    return load_settings(flags, {})


def with_file(file: Path, text: str | None = None) -> Settings:
    if text is not None:
        file.write_text(text)
    return settings(attributes_file=str(file))


def given(policy: Policy) -> dict[str, object]:
    assert policy.rules is not None
    return dict(policy.rules.attributes_for(ETH1).attributes)


def refusal(wrong: Settings) -> str:
    with pytest.raises(SettingsError) as caught:
        load_policy(wrong)
    return str(caught.value)


def test_the_settings_defaults_are_the_policys() -> None:
    assert load_policy(settings()) == Policy()


def test_each_setting_reaches_the_policy() -> None:
    policy = load_policy(
        settings(
            publish_gpus="never",
            move_ib_interfaces="false",
            offer_link_kinds="veth,vxlan",
            list_attributes="true",
            health_taints="off",
            prefer_attributes="mac",
        )
    )

    assert policy == Policy(
        publish_gpus=PublishGpus.NEVER,
        move_ib_interfaces=False,
        offer_link_kinds=frozenset({"veth", "vxlan"}),
        list_attributes=True,
        taints=False,
        prefer_attributes=("dra.net/mac",),
    )


def test_the_filter_is_compiled_for_the_drivers_name() -> None:
    chosen = load_policy(settings(driver_name="nic.net", filter='device.driver == "nic.net"')).filter

    assert chosen is not None
    assert chosen.matches({})


def test_a_filter_of_blanks_is_none() -> None:
    assert load_policy(settings(filter="  ")).filter is None


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("device.nothing", "--filter: expression does not compile: line 1, column 7: undeclared reference"),
        ('attributes["dra.net/type"].StringValue', "--filter: expression must be a bool, not string"),
        ("true &&", "--filter: expression does not compile: line 1, column 8"),
    ],
)
def test_a_filter_that_cannot_be_judged_stops_the_start(expression: str, complaint: str) -> None:
    text = refusal(settings(filter=expression))

    assert text.startswith(complaint)
    assert "docs/guides/devices.md" in text


def test_without_the_engine_a_filter_or_a_match_stops_the_start_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_module(name: str) -> object:
        raise ImportError(name)

    engine._environment.cache_clear()
    monkeypatch.setattr(engine, "import_module", no_module)
    plain = with_file(tmp_path / "plain.yaml", "attributes: [{set: {rail: 1}}]")
    matching = with_file(tmp_path / "match.yaml", "attributes: [{match: 'true', set: {rail: 1}}]")

    assert given(load_policy(plain)) == {"dra.net/rail": 1}
    for wrong, setting in (
        (settings(filter="true"), "--filter: "),
        (matching, f"--attributes-file {tmp_path}"),
    ):
        text = refusal(wrong)
        assert text.startswith(setting)
        assert "CEL expressions need an engine that is not installed" in text
        assert "install the package cel-expr-python" in text


def test_preferred_attributes_are_known_or_of_a_domain_that_is_not_ours(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("attributes: [{set: {rail: 1}}]")
    names = "mac,pcieRoot,numaNode,resource.kubernetes.io/numaNode,gce.dra.net/block,rail"
    policy = load_policy(settings(prefer_attributes=names, attributes_file=str(file)))

    assert policy.prefer_attributes == (
        "dra.net/mac",
        "resource.kubernetes.io/pcieRoot",
        "dra.net/numaNode",
        "resource.kubernetes.io/numaNode",
        "gce.dra.net/block",
        "dra.net/rail",
    )


def test_every_unknown_preferred_attribute_is_named() -> None:
    text = refusal(settings(prefer_attributes="mac,macc,dra.net/nope,resource.kubernetes.io/x,1a,A.b/c"))

    for name in ("macc", "dra.net/nope", "resource.kubernetes.io/x"):
        assert f"{name} is not an attribute that we know" in text
    assert "1a must be letters" in text
    assert "A.b/c the part before the / must be" in text
    assert "mac is not" not in text


YAML = """\
# rails
attributes:
- match: device.attributes["dra.net"].ifName.startsWith("eth")
  set: {rail: 0, example.com/fabric: blue, tenant: "a"}
"""


def test_a_yaml_and_a_json_file_give_the_same(tmp_path: Path) -> None:
    json = '{"attributes": [\n\t{"set": {"rail": 0, "example.com/fabric": "blue", "tenant": "a"}}]}'
    expected = {"dra.net/rail": 0, "example.com/fabric": "blue", "dra.net/tenant": "a"}

    assert given(load_policy(with_file(tmp_path / "a.yaml", YAML))) == expected
    assert given(load_policy(with_file(tmp_path / "a.json", json))) == expected


@pytest.mark.parametrize(
    ("name", "text", "complaints"),
    [
        (
            "a.yaml",
            "attributes:\n- set:\n    rail: 0.5\n    mac: x\n- match: nope\n  set: {rail: 1}\n  sett: 1\n",
            [
                "a.yaml:3: attributes[0].set.rail: must be an integer",
                "a.yaml:4: attributes[0].set.mac: dra.net/mac is published",
                "a.yaml:5: attributes[1].match: expression does not compile",
                "a.yaml:7: attributes[1].sett: unknown key",
            ],
        ),
        ("a.yaml", "", ["a.yaml: the file: must be a mapping with the key attributes"]),
        ("a.yaml", "attributes:\n- {set: [}\n", ["a.yaml:2: not YAML"]),
        (
            "a.yaml",
            "attributes: []\nattributes: []\n",
            ["a.yaml: not YAML: line 2: the key attributes occurs twice"],
        ),
        ("a.yaml", "attributes: [{set: {rail: 2024-13-45}}]", ["a.yaml: not YAML: month must be in 1..12"]),
        ("a.yaml", "\nattributes: &a [*a]", ["a.yaml: not YAML: line 2: write out what & and * stand for"]),
        ("a.yaml", "? [1]\n: 1\n", ["a.yaml:1: not YAML"]),
        ("a.json", '{"attributes": [}', ["a.json: not JSON: "]),
        (
            "a.json",
            '{"attributes": [], "attributes": []}',
            ["not JSON: a key occurs twice among attributes"],
        ),
        ("a.json", "[" * 100_000, ["a.json: not JSON: "]),
        ("a.json", '{"attributes": [{"set": {"rail": null}}]}', ["a.json: attributes[0].set.rail: must be"]),
        ("a.yaml", "#" * (MAX_FILE_BYTES + 1), [f"has more than {MAX_FILE_BYTES} bytes"]),
    ],
)
def test_a_bad_file_stops_the_start_with_every_problem_and_its_place(
    tmp_path: Path, name: str, text: str, complaints: list[str]
) -> None:
    told = refusal(with_file(tmp_path / name, text))

    assert told.startswith("--attributes-file ")
    assert [complaint for complaint in complaints if complaint not in told] == []


def test_a_small_file_that_stands_for_a_huge_one_is_refused_before_it_is_built(tmp_path: Path) -> None:
    merged = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 30))
    shared = (
        f"attributes:\n- set: &s {{{', '.join(f'a{n}: 1' for n in range(3000))}}}\n" + "- set: *s\n" * 9000
    )

    for text in ("a0: &a0 {k: 1}\n" + merged, shared):
        assert "write out what & and * stand for" in refusal(with_file(tmp_path / "a.yaml", text))


def test_a_pipe_that_nobody_writes_to_is_read_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    source = PolicySource(with_file(file, rail(1)))
    file.unlink()
    os.mkfifo(file)

    assert given(source.get()) == {"dra.net/rail": 1}
    assert "must be a mapping" in source.problem


def test_a_file_that_is_missing_or_no_text_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    assert "No such file" in refusal(with_file(file))
    file.write_bytes(b"\xff")
    assert "not UTF-8 text" in refusal(with_file(file))
    assert "Is a directory" in refusal(with_file(tmp_path))


def rail(number: int) -> str:
    return f"attributes: [{{set: {{rail: {number}}}}}]"


def test_a_changed_file_is_in_force_with_the_next_question(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    source = PolicySource(with_file(file, rail(1)))
    assert given(source.get()) == {"dra.net/rail": 1}

    (tmp_path / "new").write_text(rail(2))
    (tmp_path / "new").rename(file)
    assert given(source.get()) == {"dra.net/rail": 2}
    assert (source.problem, source.failed_reads) == ("", 0)


def test_the_speeds_of_ports_that_are_down_outlast_a_changed_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    source = PolicySource(with_file(file, rail(1)))
    source.get().speeds["eth1"] = 100_000
    rewrite(file, rail(2))
    assert given(source.get()) == {"dra.net/rail": 2}
    assert source.get().speeds == {"eth1": 100_000}


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    source = PolicySource(with_file(tmp_path / "a.yaml", rail(1)))

    assert source.get() is source.get()


def test_a_mounted_configmap_is_followed(tmp_path: Path) -> None:
    """The kubelet writes a new folder and points the link ``..data`` to it; the file's own link stays."""
    for number in (1, 2):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "attributes.yaml").write_text(rail(number))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "attributes.yaml").symlink_to("..data/attributes.yaml")
    source = PolicySource(with_file(tmp_path / "attributes.yaml"))
    assert given(source.get()) == {"dra.net/rail": 1}

    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert given(source.get()) == {"dra.net/rail": 2}


def rewrite(file: Path, text: str) -> None:
    """By a new file, so that it differs however coarse the clock of the file system is."""
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def test_a_bad_change_keeps_the_last_good_rules_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.yaml"
    source = PolicySource(with_file(file, rail(1)))
    with caplog.at_level(logging.INFO, logger="dranet"):
        for _ in range(2):
            rewrite(file, "attributes: 7")
            for _ in range(3):
                assert given(source.get()) == {"dra.net/rail": 1}

    assert source.problem == f"--attributes-file {file}:1: attributes: must be a list of rules; [] for none"
    assert source.failed_reads == 2
    assert caplog.messages == [f"the last good attributes stay in force: {source.problem}"]

    rewrite(file, rail(3))
    assert given(source.get()) == {"dra.net/rail": 3}
    assert source.problem == ""


def test_a_file_that_vanishes_is_a_problem_until_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    source = PolicySource(with_file(file, rail(1)))
    file.unlink()
    assert given(source.get()) == {"dra.net/rail": 1}
    assert "No such file" in source.problem

    file.write_text(rail(2))
    assert given(source.get()) == {"dra.net/rail": 2}
    assert source.problem == ""


def test_what_the_policy_holds_is_what_the_inventory_asks_for(tmp_path: Path) -> None:
    rules: AttributeRules | None = load_policy(with_file(tmp_path / "a.yaml", YAML)).rules
    assert rules is not None
    bare = Device("x", DeviceKind.RDMA)
    assert rules.attributes_for(bare).warnings == (
        "device x: attributes[0] adds nothing to it: the device has no attribute or capacity 'ifName'",
    )


@pytest.mark.process
def test_without_filter_and_file_neither_cel_nor_yaml_is_loaded() -> None:
    program = (
        "import sys\n"
        "from dranet.view.policy import PolicySource\n"
        "from dranet.settings import load_settings\n"
        "PolicySource(load_settings({}, {})).get()\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('yaml', 'cel_expr_python')\n"
        "       or name.startswith('dranet.cel')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
