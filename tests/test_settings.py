"""The driver's own settings: layers, refusals, and that every bad key is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dranet.errors import SettingsError
from dranet.settings import DECLARATIONS, HealthTaints, Settings, load_settings


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node_name: from-file\ndriver_name: file.net\nnri_index: '42'\n")
    settings = load_settings(
        {"node_name": "from-flag"}, {"DRANET_NODE_NAME": "from-env", "DRANET_DRIVER_NAME": "env.net"}, file
    )
    assert (settings.node_name, settings.driver_name, settings.nri_index) == ("from-flag", "env.net", "42")


def test_every_bad_key_is_named_at_once_in_the_spelling_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"rescan_seconds": 0, "nonsense": 1}')
    with pytest.raises(SettingsError) as caught:
        load_settings({"driver_name": "Not A Name"}, {"DRANET_SYSFS_ROOT": "relative"}, file)
    text = str(caught.value)
    assert "--driver-name: must be a lower-case DNS name" in text
    assert "DRANET_SYSFS_ROOT: must be an absolute path" in text
    assert f"rescan_seconds in file {file}" in text
    assert "nonsense" in text


def test_an_unknown_environment_setting_is_refused_together_with_what_else_is_wrong() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, {"DRANET_SYFS_ROOT": "/sys", "DRANET_RESCAN_SECONDS": "-3"})
    assert "DRANET_SYFS_ROOT: unknown setting" in str(caught.value)
    assert "DRANET_RESCAN_SECONDS: must be a number of seconds" in str(caught.value)


def test_a_name_that_is_nearly_right_is_told_the_right_one() -> None:
    with pytest.raises(SettingsError, match=r"DRANET_POD_ID: unknown setting; did you mean pod_uid\?"):
        load_settings({}, {"DRANET_POD_ID": "x"})
    with pytest.raises(SettingsError, match="DRANET_QUUX: unknown setting; known are driver_name, "):
        load_settings({}, {"DRANET_QUUX": "x"})


def test_off_is_off_although_yaml_reads_false_and_nothing_is_not_the_effect_none(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    for written, meant in (("off", HealthTaints.OFF), ("None", HealthTaints.NONE)):
        file.write_text(f"health_taints: {written}\n")
        assert load_settings({}, {}, file).health_taints is meant
    for nothing in ("", "null"):
        file.write_text(f"health_taints: {nothing}\n")
        with pytest.raises(SettingsError, match=r"health_taints in file .* must be one of off, None"):
            load_settings({}, {}, file)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("off", "off"),
        ("NONE", "off"),
        ("CKS", "coreweave"),
        *((name.upper(), name) for name in ("gce", "aws", "azure", "oke", "alibaba")),
    ],
)
def test_a_cloud_may_be_written_as_dranet_writes_it(written: str, meant: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"cloud_provider: {written}\n")
    assert load_settings({}, {}, file).cloud_provider == meant
    assert load_settings({}, {"DRANET_CLOUD_PROVIDER": written}).cloud_provider == meant


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"node_name: \xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings({}, {}, file)


def test_what_kubernetes_injects_beside_a_service_is_not_taken_for_a_setting() -> None:
    injected = {"DRANET_SERVICE_HOST": "10.0.0.1", "DRANET_PORT_9177_TCP": "x", "DRANET_METRICS_PORT": "y"}
    assert load_settings({}, injected) == Settings()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[1, 2]", "must be a mapping"),
        ("node_name: x\na: b: c", r"settings.yaml:2:5: not YAML"),
        ("node_name: 2026-13-45", r"settings.yaml: not YAML: month must be in 1..12"),
        ("[" * 5000, r"settings.yaml: not YAML: maximum recursion depth"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=complaint):
        load_settings({}, {}, file)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings({}, {}, Path("/nonexistent/settings.yaml"))


def test_a_socket_path_that_no_unix_socket_can_hold_is_refused() -> None:
    with pytest.raises(SettingsError, match="107"):
        load_settings({"kubelet_root": "/" + "x" * 100}, {})


def test_every_setting_has_a_help_text_and_two_spellings_and_accepts_its_own_default() -> None:
    for setting in DECLARATIONS.values():
        assert setting.description, setting.name
        assert setting.flag.startswith("--")
        assert setting.environment.startswith("DRANET_")
        assert setting.accept(setting.default) == setting.default
        words = setting.default if isinstance(setting.default, tuple) else (setting.default,)
        as_text = "" if setting.default is None else ",".join(map(str, words))
        if as_text or not isinstance(setting.default, str):
            assert setting.accept(as_text) == setting.default


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("publish_gpus", "true", "one of auto, always, never"),
        ("move_ib_interfaces", "maybe", "true or false"),
        ("rescan_seconds", "soon", "number of seconds"),
        ("rescan_seconds", "nan", "number of seconds"),
        ("hook_budget_seconds", "31", "from 0.1 to 30"),
        ("log_level", "loud", "one of debug, info, warning, error"),
        ("nri_index", "7", "two digits"),
        ("bind_address", "9177", "HOST:PORT"),
        ("bind_address", "::1:9177", "HOST:PORT"),
        ("offer_link_kinds", "veth,Bridge", "must be kinds as `ip -details link` prints them"),
        ("offer_link_kinds", "a kind", "must be kinds as `ip -details link` prints them"),
        ("node_addresses", "10.0.0.5,10.0.0", "must be IP addresses.*'10.0.0'"),
        ("attributes_file", "attributes.yaml", "absolute path"),
        ("list_attributes", "1", "true or false"),
    ],
)
def test_a_value_out_of_its_kind_is_refused_with_what_it_must_be(
    name: str, value: str, complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_settings({name: value}, {})


def test_a_file_may_hold_typed_values(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("publish_gpus: never\nmove_ib_interfaces: false\nrescan_seconds: 30\nlog_level: debug\n")
    settings = load_settings({}, {}, file)
    assert (settings.publish_gpus, settings.move_ib_interfaces) == ("never", False)
    assert (settings.rescan_seconds, settings.log_level) == (30.0, "debug")


def test_lists_are_words_between_commas_and_lists_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("offer_link_kinds: [veth, vxlan]\nprefer_attributes: [mac]\n")
    settings = load_settings({"prefer_attributes": "ipv4, example.com/rail ,"}, {}, file)
    assert settings.offer_link_kinds == ("veth", "vxlan")
    assert settings.prefer_attributes == ("ipv4", "example.com/rail")
    assert load_settings({"node_addresses": "10.0.0.5,2001:DB8:0::5"}, {}).node_addresses == (
        "10.0.0.5",
        "2001:db8::5",
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"cloud_provider": "webhook"}, "--cloud-provider webhook without --webhook-url"),
        ({"profile_provider": "webhook"}, "--profile-provider webhook without --webhook-url"),
        ({"webhook_url": "http://p"}, "--webhook-url, and nothing is asked of it"),
        ({"webhook_url": "http://p", "profile_provider": "cloud"}, "nothing is asked of it"),
        ({"webhook_client_cert": "/a.crt"}, "--webhook-client-cert and --webhook-client-key: one without"),
    ],
)
def test_a_webhook_provider_is_asked_for_something_and_is_somewhere(
    flags: dict[str, str], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_settings(flags, {})


def test_dranets_values_for_providers_work() -> None:
    flags = {
        "cloud_provider": "webhook",
        "profile_provider": "webhook",
        "webhook_url": "http://127.0.0.1:8080",
    }
    settings = load_settings(flags, {})
    assert (settings.cloud_provider, settings.profile_provider) == ("webhook", "webhook")
    assert load_settings({"profile_provider": "none"}, {}).profile_provider == "none"


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("lldp", "on", "must be one of off, listen, lldpd"),
        ("rail_pattern", "leaf-(", "must be a regular expression"),
        ("rail_pattern", "leaf", "with one group"),
        ("rail_pattern", "(a)(b)", "with one group"),
        ("expected_rails", "eth0", "must be INTERFACE=RAIL"),
        ("expected_rails", "eth0=x", "must be INTERFACE=RAIL"),
        ("expected_rails", "=1", "must be INTERFACE=RAIL"),
        ("expected_rails", "eth0=1,eth0=2", "must name each interface once"),
    ],
)
def test_a_wrong_setting_of_rails_is_refused_with_the_reason(flag: str, value: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        load_settings({flag: value}, {})


def test_rails_are_expected_by_interface_or_pci_address() -> None:
    found = load_settings({"expected_rails": "eth0=0,0000:1a:00.0=1", "rail_pattern": r"leaf-(\d+)"}, {})
    assert found.expected_rails == ("eth0=0", "0000:1a:00.0=1")
    assert found.rail_pattern == r"leaf-(\d+)"
