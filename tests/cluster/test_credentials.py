"""Tokens, certificates and kubeconfig files: what is accepted, what is refused and how it is said."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from dranet.cluster.kubeconfig import read_kubeconfig
from dranet.cluster.transport import FixedToken, TokenFile, access_from_url, in_cluster_access
from dranet.errors import SettingsError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_rotated_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    source = TokenFile(path)
    assert source.get_token() == "one"
    replacement = tmp_path / "new"
    replacement.write_text("two\n")
    replacement.rename(path)
    assert source.get_token() == "two"


def test_a_token_file_is_read_again_every_minute_even_if_it_looks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    clock = Clock()
    source = TokenFile(path, clock=clock)
    assert source.get_token() == "one"
    stamp = path.stat().st_mtime_ns
    path.write_text("two")
    os.utime(path, ns=(stamp, stamp))
    assert source.get_token() == "one"
    clock.now += 61
    assert source.get_token() == "two"


def test_a_token_that_the_server_refused_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    source = TokenFile(path)
    assert source.get_token() == "one"
    path.unlink()
    assert source.get_token() == "one"
    source.forget()
    with pytest.raises(SettingsError, match="token"):
        source.get_token()


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words", b"a\nb", b"\xff\xfe"])
def test_a_token_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="token"):
        TokenFile(path).get_token()


def test_a_pod_finds_its_api_server_through_its_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("c")
    access = in_cluster_access(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path
    )
    assert access.url == "https://[fd00::1]:443"
    assert access.token.get_token() == "t"


@pytest.mark.parametrize(
    "environment",
    [{}, {"KUBERNETES_SERVICE_HOST": "h"}, {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "x"}],
)
def test_outside_of_a_cluster_the_error_names_the_mend(tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        in_cluster_access(environment, tmp_path)
    assert "--kubeconfig" in caught.value.hint


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h", "https://h:443"),
        ("http://h:8080/", "http://h:8080"),
        ("https://[::1]:6443/k8s/clusters/c/", "https://[::1]:6443/k8s/clusters/c"),
    ],
)
def test_a_server_url_is_taken_apart(url: str, expected: str) -> None:
    assert access_from_url(url).url == expected


@pytest.mark.parametrize(
    "url", ["", "h:6443", "ftp://h", "https://", "https://h:port", "https://" + "x" * 64]
)
def test_a_server_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        access_from_url(url)


def write(tmp_path: Path, user: dict[str, object], cluster: dict[str, object] | None = None) -> Path:
    path = tmp_path / "config"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c1", "user": "u1"}}],
        "clusters": [{"name": "c1", "cluster": {"server": "https://h:6443", **(cluster or {})}}],
        "users": [{"name": "u1", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


def test_a_kubeconfig_with_a_token_gives_server_and_token(tmp_path: Path) -> None:
    access = read_kubeconfig(write(tmp_path, {"token": "secret"}))
    assert access.url == "https://h:6443"
    assert access.token == FixedToken("secret")


def test_a_token_file_is_relative_to_the_kubeconfig_and_wins(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("from-file")
    access = read_kubeconfig(write(tmp_path, {"token": "fixed", "tokenFile": "tok"}))
    assert access.token.get_token() == "from-file"


def test_certificate_files_are_relative_and_data_wins_over_them(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    user: dict[str, object] = {
        "client-certificate": "c.pem",
        "client-certificate-data": data,
        "client-key": "k.pem",
    }
    access = read_kubeconfig(
        write(tmp_path, user, {"certificate-authority": "ca.pem", "tls-server-name": "kube"})
    )
    assert access.tls is not None
    assert access.tls.authority.path == tmp_path / "ca.pem"
    assert (access.tls.client_certificate.text, access.tls.client_certificate.path) == ("PEM", None)
    assert access.tls.client_key.path == tmp_path / "k.pem"
    assert access.tls.server_name == "kube"


@pytest.mark.parametrize("key", ["exec", "auth-provider"])
def test_a_daemon_refuses_a_credential_program_with_the_users_name_and_the_mend(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(SettingsError, match="user 'u1'") as caught:
        read_kubeconfig(write(tmp_path, {key: {"command": "aws"}}))
    assert key in caught.value.message
    assert "tokenFile" in caught.value.hint


@pytest.mark.parametrize(
    ("user", "cluster", "expected"),
    [
        ({"username": "u", "password": "p"}, {}, "user 'u1'"),
        ({"as": "other"}, {}, "user 'u1'"),
        ({"client-certificate": "x"}, {}, "go together"),
        ({"client-key-data": "%%%", "client-certificate": "x"}, {}, "client-key-data"),
        ({"token": 5}, {}, "token must be text"),
        ({}, {"proxy-url": "http://p"}, "cluster 'c1'"),
        ({}, {"server": ""}, "API server URL"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected):
        read_kubeconfig(write(tmp_path, user, cluster))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not YAML"),
        ("[]", "must be a mapping"),
        ("{}", "current-context"),
        ("current-context: x", "no context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "no cluster 'y'"),
        ("{current-context: x, contexts: [{name: a}, 3, {name: b}]}", r"no context 'x' \(there is a, b\)"),
    ],
)
def test_a_broken_kubeconfig_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingsError, match=expected):
        read_kubeconfig(path)


def test_a_missing_kubeconfig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_kubeconfig(tmp_path / "none")


def test_another_context_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"token": "t"})
    document = json.loads(path.read_text())
    document["contexts"].append({"name": "there", "context": {"cluster": "c2", "user": ""}})
    document["clusters"].append({"name": "c2", "cluster": {"server": "http://other:1"}})
    path.write_text(json.dumps(document))
    assert read_kubeconfig(path, "there").url == "http://other:1"
