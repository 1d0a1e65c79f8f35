"""Texts of a support bundle: what is hidden, what stays, and that nothing planted survives."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dranet.desk.redact.text import REMOVED, redact_texts
from dranet.model.facts import Address, Host, Link, NodeFacts, RdmaDevice
from tests.support.processor_time import measure

KEY = b"k" * 32
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl-b_Zg"
BASE64 = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU2Nzg5YWJjZGVmZ2g="


def redact(text: str, **names: str) -> str:
    return redact_texts(NodeFacts(), {"file": text}, names, KEY).texts["file"]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {JWT}", JWT),
        (f'{{"token": "{JWT[3:]}"}}', JWT[3:]),
        ("password=hunter2!x", "hunter2!x"),
        ('"client_secret": "s3cr3t"', "s3cr3t"),
        ('{"a": "{\\"api-key\\": \\"s3cr3t\\"}"}', "s3cr3t"),
        ("basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("Authorization: Token abcdefgh", "abcdefgh"),
        ("authorization=Bearer%20abcdefgh", "abcdefgh"),
        ('{"token": "two words", "x": 1}', "words"),
        ("password: 'two words'", "words"),
        ('{"a": "{\\"token\\": \\"two words\\"}"}', "words"),
        ('{"env": [{"name": "DB_PASSWORD", "value": "s3cr3t"}]}', "s3cr3t"),
        ("https://user:hunter2@registry.corp.example/x", "registry.corp"),
        ("board_serial: MT2143X01234", "MT2143X01234"),
        ("https://user:hunter2@registry.corp.example/x", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "MIIabc"),
        ("-----BEGIN CERTIFICATE-----\nMIIabc and cut there", "MIIabc"),
        (f"key {BASE64} end", BASE64),
        ("nvme nvme0: serial number: S4EVNX0M", "S4EVNX0M"),
        ("Serial=ABC123", "ABC123"),
        ("adapter serial_number MT2216X00042 found", "MT2216X00042"),
        ("vpd: [SN] MT2216X00042", "MT2216X00042"),
        ("bob.smith@corp.example", "bob.smith"),
        ("cannot resolve api.cluster7.corp.example: timed out", "cluster7"),
        ("https://k8s.corp:6443/api", "k8s.corp"),
        ("config /home/bob/.kube/config", "bob"),
        ("sandbox 3f2a91c45b6d7e8f901a2b3c4d5e6f70112233445566778899aabbccddeeff00", "3f2a91c45b6d7e8f"),
        ("0c:42:a1:65:7b:22 and 10.20.30.40/24", "10.20.30.40"),
        ("link 0c:42:a1:65:7b:22 up", "65:7b:22"),
        ("fd00:1:2::5", "fd00:1:2::5"),
        ("uid 6e4b6f5d-0f4c-4b8e-9a39-3c1c5d2f7a10", "6e4b6f5d"),
    ],
)
def test_what_tells_whose_it_is_goes(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Linux 6.12.95+deb12-amd64, containerd 2.1.4, firmware 28.39.1002",
        "on at 0000:17:00.0, eth0 (1500 leaves 1024)",
        "resource.kubernetes.io/numaNode, gpu.nvidia.com, io.containerd.nri.v1.nri",
        "/var/lib/kubelet/plugins_registry/dra.net-reg.sock /sys/kernel/mm/transparent_hugepage/enabled",
        '{"severity": "ok", "seen": "calls v1.DRAPlugin", "matters": ""}',
        'dranet_device_receive_bytes_total{device="pci-0000-17-00-0"} 12345678',
        "namespace default in kube-system",
    ],
)
def test_what_says_which_hardware_and_which_software_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "document",
    [
        {"imagePullSecrets": [{"name": "x"}], "tokens": [], "secrets": {}, "credential": {"a": ["b"]}},
        {"token": None, "secret": True, "passwords": ['a"b', "c\\"]},
        {"token": 'with "quotes" and \\ in it', "next": "kept"},
    ],
)
def test_a_document_stays_one(document: object) -> None:
    shown = redact_texts(NodeFacts(), {"a.json": json.dumps(document, indent=1)}, {}, KEY).texts["a.json"]
    parsed = json.loads(shown)
    assert parsed.keys() == document.keys()  # type: ignore[attr-defined]
    assert parsed.get("next", "kept") == "kept"
    assert "quotes" not in shown


def test_a_counter_with_as_many_digits_as_an_address_is_no_address() -> None:
    counters = {
        "metrics.txt": 'x{mac="525400123456"} 525400123456\ny 0.123456789012\n',
        "a.json": '{"a": 525400123456}',
    }
    shown = redact_texts(NodeFacts(), counters, {}, KEY).texts
    assert re.fullmatch(r'x\{mac="020000000001"\} 525400123456\ny 0.123456789012\n', shown["metrics.txt"])
    assert shown["a.json"] == counters["a.json"]
    assert redact_texts(NodeFacts(), {"x.txt": "525400123456"}, {}, KEY).texts["x.txt"] == "020000000001"


def test_the_same_name_is_the_same_word_in_every_text_and_another_with_another_key() -> None:
    texts = {"a": "pod trainer-0 waits", "b": '{"name": "trainer-0"}'}
    names = {"trainer-0": "pod"}
    shown = redact_texts(NodeFacts(), texts, names, KEY)
    (word,) = re.findall(r"pod-[0-9a-f]{8}", shown.texts["a"])
    assert shown.texts["b"] == f'{{"name": "{word}"}}'
    assert shown.counts == {"pod": 2}
    other = redact_texts(NodeFacts(), texts, names, b"x" * 32)
    assert word not in other.texts["a"]


def test_a_name_inside_another_word_stays_and_the_longer_name_wins() -> None:
    shown = redact("ab abc ab-c", **{"ab": "pod", "ab-c": "claim"})
    assert re.fullmatch(r"pod-\w{8} abc claim-\w{8}", shown)


def test_names_that_every_cluster_has_stay() -> None:
    assert redact("in default of dranet", default="namespace", dranet="namespace") == "in default of dranet"


def test_facts_and_texts_get_the_same_addresses() -> None:
    facts = NodeFacts(
        links=(Link(2, "eth0", mac="0c:42:a1:65:7b:22", addresses=(Address("10.20.30.40/24"),)),),
        host=Host("node-7.corp.example"),
        warnings=("node-7.corp.example: token=abcdef123",),
    )
    text = "mac 0c:42:a1:65:7b:22, address 10.20.30.40, on node-7"
    shown = redact_texts(facts, {"x": text}, {"node-7": "node"}, KEY)
    (link,) = shown.facts.links
    assert f"mac {link.mac}, address {link.addresses[0].cidr.partition('/')[0]}," in shown.texts["x"]
    assert "corp" not in shown.facts.warnings[0]
    assert "abcdef123" not in shown.facts.warnings[0]


@pytest.mark.parametrize(
    "piece", ["a", "a.", "a-", "1.", "a@", "serial_", "Aa1", "0a", 'token="', '\\"', "://a"]
)
def test_no_text_takes_for_ever(piece: str) -> None:
    """A hundred thousand characters without a space: a search that begins anew at each takes minutes."""
    assert measure(lambda: redact(piece * (100_000 // len(piece)))) < 4000


# Property: nothing planted survives.

NAMES = st.from_regex(r"[a-z][a-z0-9-]{4,20}[a-z0-9]", fullmatch=True).filter(
    lambda name: not re.search(r"(pod|claim|node|removed|from|and|holds|token|password)", name)
)
MACS = st.binary(min_size=6, max_size=6).map(lambda b: ":".join(f"{byte:02x}" for byte in b))
UUIDS = st.uuids().map(str)
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).filter(
    lambda a: a.is_global and not a.is_multicast
)
TOKENS = st.from_regex(r"[A-Za-z0-9_-]{12,60}", fullmatch=True).filter(lambda t: not set(t) <= set("-_"))
SHAPES = st.sampled_from(["{0}", "x {0}: y", "({0})", "{0}, and", "{0}/n", "'{0}'", "a={0} b", "\n{0}\n"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    mac=MACS,
    uuid=UUIDS,
    address=ADDRESSES,
    token=TOKENS,
    shape=SHAPES,
    noise=st.text(max_size=20),
)
@example(
    ["abcdef"], "00:00:00:00:00:01", "00000000-0000-0000-0000-000000000001", "8.8.8.8", "A" * 12, "{0}", ""
)
def test_no_planted_secret_survives(
    names: list[str], mac: str, uuid: str, address: object, token: str, shape: str, noise: str
) -> None:
    planted = [*names, mac, uuid, str(address)]
    text = "\n".join(shape.format(secret) for secret in planted) + f"\npassword: {token}\n{noise}"
    document = json.dumps(
        {"deep": [{"name": secret} for secret in planted], "token": token}, ensure_ascii=False
    )
    facts = NodeFacts(
        links=(Link(2, "eth0", mac=mac),),
        rdma_devices=(RdmaDevice("mlx5_0", node_guid="0c42:a103:0065:7b22"),),
        warnings=tuple(planted),
    )
    kinds = dict.fromkeys(names, "pod")
    shown = redact_texts(facts, {"text": text, "json": document}, kinds, KEY)
    everything = "\n".join(
        [*shown.texts.values(), *shown.facts.warnings, *(link.mac for link in shown.facts.links)]
    )
    quiet = replace(facts, links=(), rdma_devices=(), warnings=())
    assert quiet == NodeFacts()
    for secret in planted:
        assert not stands_alone(secret, everything), secret
    assert f"password: {token}" not in everything
    assert json.loads(shown.texts["json"])["token"] == REMOVED


def stands_alone(word: str, text: str) -> bool:
    """Whether it is there as a word. All zeros say nothing, and stay."""
    if set(word) <= set("0:-"):
        return False
    return re.search(rf"(?<![0-9A-Za-z]){re.escape(word)}(?![0-9A-Za-z])", text, re.IGNORECASE) is not None


def test_who_wrote_from_a_host_that_has_a_name_goes_with_it() -> None:
    assert "alice" not in redact("alice@corp.example asked", **{"corp.example": "domain"})
