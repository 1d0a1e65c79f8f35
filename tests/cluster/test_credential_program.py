"""Credential programs of kubeconfigs: what they are given, what is believed of their answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.kubeconfig import read_kubeconfig
from dranet.cluster.transport import ClusterAccess, FixedToken
from dranet.errors import SettingsError
from testbed.apiserver.server import ApiServer
from tests.cluster.credential_programs import VERSION, have_it_asked, write_noting_program
from tests.documents.kubectl import find_kubectl

pytestmark = pytest.mark.process

PAIR = {"clientCertificateData": "CERT", "clientKeyData": "KEY"}


def write(folder: Path, entry: Mapping[str, Any], cluster: Mapping[str, Any] | None = None) -> Path:
    path = folder / "config"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c1", "user": "u1"}}],
        "clusters": [{"name": "c1", "cluster": {"server": "https://h:6443", **(cluster or {})}}],
        "users": [{"name": "u1", "user": {}}],
    }
    path.write_text(json.dumps(document))
    have_it_asked(path, entry)
    return path


def answering(folder: Path, answer: str, code: int = 0) -> dict[str, Any]:
    """An ``exec`` entry of a program that writes this and ends with that code."""
    (folder / "answer").write_text(answer)
    return {"command": "sh", "args": ["-c", f"cat {folder / 'answer'}; exit {code}"]}


def credential(status: Mapping[str, Any] | None, *, version: str = VERSION) -> str:
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def ask(folder: Path, entry: Mapping[str, Any], cluster: Mapping[str, Any] | None = None) -> ClusterAccess:
    return read_kubeconfig(write(folder, entry, cluster), may_run_program=True)


async def test_a_program_is_given_what_kubectl_gives_it(certificates: Path, tmp_path: Path) -> None:
    write_noting_program(tmp_path / "login", tmp_path / "notes")
    entry = {
        "command": "./login",
        "args": ["--cluster", "gpu pool"],
        "env": [{"name": "REGION", "value": "north"}],
        "provideClusterInfo": True,
    }
    async with ApiServer(
        certificate=certificates / "a.crt", key=certificates / "a.key", tokens=["from-the-program"]
    ) as server:
        server.write_kubeconfig(tmp_path / "config")
        have_it_asked(tmp_path / "config", entry, cluster_config={"audience": "gpus"})
        await get_with_kubectl(tmp_path / "config")
        theirs = json.loads((tmp_path / "notes").read_text())
        (tmp_path / "notes").unlink()
        async with ApiClient.from_kubeconfig(tmp_path / "config", may_run_program=True) as client:
            await client.get(paths.namespace("default"))
    ours = json.loads((tmp_path / "notes").read_text())
    assert ours == theirs
    assert (ours["arguments"], ours["region"]) == (["--cluster", "gpu pool"], "north")
    assert "certificate-authority-data" in ours["info"]["spec"]["cluster"]


async def get_with_kubectl(kubeconfig: Path) -> None:
    words = ("--kubeconfig", str(kubeconfig), "get", "--raw", paths.namespace("default"))
    done = await asyncio.create_subprocess_exec(
        str(find_kubectl()), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said = (await done.communicate())[0].decode()
    assert done.returncode == 0, said


def test_a_certificate_that_a_program_gives_is_shown_to_the_server(tmp_path: Path) -> None:
    access = ask(tmp_path, answering(tmp_path, credential(PAIR)))
    assert access.tls is not None
    assert (access.tls.client_certificate.text, access.tls.client_key.text) == ("CERT", "KEY")
    assert access.token == FixedToken()


def test_a_token_that_stands_in_the_file_comes_first(tmp_path: Path) -> None:
    path = write(tmp_path, answering(tmp_path, credential({"token": "asked"})))
    document = json.loads(path.read_text())
    document["users"][0]["user"]["token"] = "written"
    path.write_text(json.dumps(document))
    assert read_kubeconfig(path, may_run_program=True).token == FixedToken("written")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Please log in", "is not JSON"),
        ("[]", "is no ExecCredential"),
        (json.dumps({"kind": "Pod"}), "is no ExecCredential"),
        (credential({"token": "t"}, version="client.authentication.k8s.io/v1beta1"), "asked was .*/v1"),
        (credential(None), "has no status"),
        (credential({}), "neither a token nor a client certificate"),
        (credential({"token": 5}), "token must be text, not int"),
        (credential({"token": "two words"}), "one word of ASCII"),
        (credential({"token": "a\r\nHost: other"}), "one word of ASCII"),
        (credential({"clientKeyData": "KEY"}), "go together"),
    ],
)
def test_an_answer_that_is_no_credential_is_refused_with_the_users_name(
    tmp_path: Path, answer: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=f"user 'u1': the answer of .*{expected}"):
        ask(tmp_path, answering(tmp_path, answer))


def test_what_a_broken_answer_holds_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        ask(tmp_path, answering(tmp_path, '{"status": {"token": "hunter2"'))
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": ""}, "names no command"),
        ({"command": "true", "apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
        ({"command": "true", "interactiveMode": "Sometimes"}, "'Sometimes'"),
        ({"command": "true", "interactiveMode": "Always"}, "standard input is no terminal"),
        ({"command": "true", "env": {"A": "b"}}, "exec.env must be a list"),
        ({"command": "true", "env": [{"name": "A", "value": 1}]}, "exec.env: value must be text"),
        ({"command": "true", "args": "--all"}, "exec.args must be a list"),
        ({"command": "true", "args": [1]}, "exec.args must be a list"),
        ({"command": "false"}, "false ended with exit code 1"),
    ],
)
def test_an_entry_that_cannot_be_run_is_refused_by_its_field(
    tmp_path: Path, entry: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SettingsError, match=f"user 'u1'.*{expected}"):
        ask(tmp_path, entry)


def test_how_a_missing_program_is_installed_is_said_in_the_words_of_the_kubeconfig(tmp_path: Path) -> None:
    entry = {"command": "no-such-login-program", "installHint": "Install it from the portal.\n"}
    with pytest.raises(SettingsError, match="no-such-login-program cannot be run: No such file") as caught:
        ask(tmp_path, entry)
    assert caught.value.hint == "Install it from the portal."


def test_an_exec_entry_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    document = json.loads(path.read_text())
    document["users"][0]["user"]["exec"] = "login"
    path.write_text(json.dumps(document))
    with pytest.raises(SettingsError, match="user 'u1': exec must be a mapping, not str"):
        read_kubeconfig(path, may_run_program=True)
