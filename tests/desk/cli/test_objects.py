"""Objects from files, captures and a cluster: read safely, refused by name."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dranet.cluster import paths
from dranet.cluster.client import ApiClient
from dranet.cluster.transport import access_from_url
from dranet.desk.cli.objects import ClusterObjects, capture_slices, fetch_live, load_files
from dranet.errors import ClusterError, Reason, SettingsError
from dranet.settings import load_settings
from testbed.apiserver.identity import User
from testbed.apiserver.server import ApiServer
from tests.cluster.credential_programs import have_it_asked

DATA = Path(__file__).parents[2] / "data"
CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic"}, "spec": {}}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "team-a"},
    "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}},
}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str, name: str = "x.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_documents_of_a_file_are_sorted_by_kind_and_know_where_they_stood(written: Any) -> None:
    path = written(yaml.safe_dump_all([CLASS, {"apiVersion": "v1", "kind": "Secret"}, CLAIM]))
    found = load_files([path])

    assert (found.classes, found.claims) == ([CLASS], [CLAIM])
    assert [other["kind"] for other in found.others] == ["Secret"]
    assert found.source_of(found.claims[0]) == f"{path}, document 3"


def test_items_of_a_list_get_its_type_back(written: Any) -> None:
    bare = {key: value for key, value in CLAIM.items() if key not in ("apiVersion", "kind")}
    typed = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "items": [bare]}
    mixed = {"apiVersion": "v1", "kind": "List", "items": [CLASS, CLAIM]}
    found = load_files([written(json.dumps(typed), "a.json"), written(json.dumps(mixed), "b.json")])

    assert (found.claims, found.classes) == ([CLAIM, CLAIM], [CLASS])
    assert found.source_of(found.claims[1]).endswith("b.json, document 1, item 2")


def test_a_folder_stands_for_its_files_and_a_dash_for_standard_input(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(json.dumps(CLASS), "one.json").parent
    written("no: object", "readme.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CLAIM).encode())))
    found = load_files([folder, "-"])

    assert (found.classes, found.claims) == ([CLASS], [CLAIM])
    assert found.source_of(found.claims[0]) == "standard input, document 1"


def test_a_date_without_quotes_stays_text(written: Any) -> None:
    path = written(
        "{apiVersion: v1, kind: Node, metadata: {name: a, creationTimestamp: 2026-01-01T00:00:00Z}}"
    )
    assert load_files([path]).nodes[0]["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"


def test_a_slice_that_was_never_stored_is_named_after_its_prefix(written: Any) -> None:
    spec = {"driver": "d", "nodeName": "n", "pool": {"name": "n", "resourceSliceCount": 1}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
    found = load_files([written(json.dumps({**body, "metadata": {"generateName": "00000-d-n-"}}))])

    assert found.slices[0]["metadata"]["name"].startswith("00000-d-n-")


def _bomb() -> str:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    return "\n".join(lines)


REFUSED = {
    "deep flow": ("[" * 100_000, "document 1: nested deeper than 100 levels"),
    "deep blocks": ("- " * 2_000 + "x", "nested deeper than 100 levels"),
    "deep JSON": ('{"a":' * 500 + "1" + "}" * 500, "nested deeper than 100 levels"),
    "an alias within itself": ("&a [*a]", "nested deeper than 100 levels"),
    "a bomb of aliases": (_bomb(), "more than 10,000,000 values"),
    "a key twice": ("kind: Pod\nkind: Pod", r":1:1: not YAML: the key 'kind' is there twice"),
    "not YAML": ("a: [", r":2:1: not YAML"),
    "a control character": ("a: \x07", "not YAML"),
    "a Python object": ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
    "binary": ("a: !!binary aGk=", "binary has no place here"),
    "a number as a key": ("1: x", "the key 1 is no text"),
    "a list as a key": ("? [a]\n: b", "not YAML"),
    "no object": ("just text", "document 1: an object must be a mapping"),
    "a list of texts": ("[a, b]", "item 1: an object must be a mapping"),
    "items of no list": ("{apiVersion: v1, kind: List, items: 3}", "items must be a list"),
    "no kind": ("a: 1", "document 1: apiVersion is missing"),
    "nothing": ("", "no Kubernetes objects"),
    "a template of Helm": ("kind: {{ .Kind }}\n", "render a template of Helm first"),
    "a letter that is a boolean": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: n}\n",
        "metadata.name must be text",
    ),
    "nothing for us": ("{apiVersion: apps/v1, kind: Deployment}", "only 1 Deployment, none of which"),
    "no name": ("{apiVersion: v1, kind: Pod, metadata: {}}", "Pod: metadata.name is missing"),
    "an old version": (
        "{apiVersion: resource.k8s.io/v1alpha3, kind: ResourceSlice, metadata: {name: s}}",
        "resource.k8s.io/v1alpha3 is not read",
    ),
    "a text for a list": (
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: x}}",
        "document 1: Pod p: spec.containers must be a list",
    ),
    "half a character": (
        '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p\\ud800"}, "spec": {}}',
        "document 1: Pod: text with half a character",
    ),
    "a bool for a number": (
        """{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {
        driver: d, pool: {name: p, resourceSliceCount: true}}}""",
        "ResourceSlice s: spec.pool.resourceSliceCount must be a whole number, not 'True'",
    ),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_object_is_refused_with_file_document_and_cause(written: Any, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        load_files([written(text)])
    assert "x.yaml" in str(refused.value)


def test_files_that_are_not_there_or_too_long_or_no_text_are_refused(
    tmp_path: Path, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"gone\.yaml: No such file"):
        load_files([tmp_path / "gone.yaml"])
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_files([tmp_path / "x.yaml"])
    monkeypatch.setattr("dranet.desk.cli.object_files.MAX_BYTES", 10)
    with pytest.raises(SettingsError, match="longer than"):
        load_files([written(json.dumps(CLASS))])


def test_without_the_check_of_shapes_only_the_identity_counts(written: Any) -> None:
    body = {**CLAIM, "spec": {"devices": {"requests": "none"}}}
    assert load_files([written(json.dumps(body))], check=False).claims == [body]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["requests", "constraints", "driver", "pool", "devices", "selectors", "containers"])


@given(
    kind=st.sampled_from(["ResourceSlice", "DeviceClass", "ResourceClaim", "Pod", "Node", "DeviceTaintRule"]),
    spec=st.dictionaries(FIELDS, JSON, max_size=4) | JSON,
    metadata=st.just({"name": "x"}) | JSON,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_is_in_an_object_it_is_read_or_refused(
    written: Any, kind: str, spec: object, metadata: object
) -> None:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
    try:
        found = load_files([written(json.dumps(body))])
    except SettingsError:
        return
    assert len(list(found)) == 1


# --- captures ----------------------------------------------------------------------------------------


def test_a_capture_becomes_a_node_and_the_slices_that_its_driver_would_publish() -> None:
    capture = DATA / "dgx-h100" / "capture.json"
    expected = json.loads((DATA / "dgx-h100" / "expected.json").read_text())
    found = capture_slices([capture], load_settings({}, {}))

    (body,) = found.slices
    assert body["spec"]["nodeName"] == body["spec"]["pool"]["name"] == "dgx-00"
    assert len(body["spec"]["devices"]) == 20
    assert [node["metadata"]["name"] for node in found.nodes] == ["dgx-00"]
    held_back = [d.device.name for d in found.looks["dgx-00"].inventory if not d.published]
    assert held_back
    assert expected


def test_captures_of_one_name_become_nodes_of_distinct_names() -> None:
    capture = DATA / "dgx-h100" / "capture.json"
    found = capture_slices([capture, capture], load_settings({}, {}))

    assert [node["metadata"]["name"] for node in found.nodes] == ["dgx-00", "dgx-00-2"]
    assert len({body["metadata"]["name"] for body in found.slices}) == 2


def test_what_shapes_the_inventory_shapes_the_slices_of_a_capture() -> None:
    no_gpus = load_settings({"filter": 'device.attributes["dra.net"].?type.orValue("") != "gpu"'}, {})
    found = capture_slices([DATA / "dgx-h100" / "capture.json"], no_gpus)
    assert not [d for d in found.slices[0]["spec"]["devices"] if d["name"].startswith("gpu")]


# --- a cluster ---------------------------------------------------------------------------------------


@pytest.mark.socket
def test_a_live_cluster_is_listed_with_the_rights_of_the_user(tmp_path: Path) -> None:
    found = asyncio.run(_ask_live(tmp_path, ""))
    assert isinstance(found, ClusterObjects)
    assert [body["metadata"]["name"] for body in found.classes] == ["nic"]
    assert [body["metadata"]["name"] for body in found.claims] == ["c"]
    assert found.source_of(found.claims[0]).startswith("the cluster at http")


@pytest.mark.socket
def test_a_right_that_is_missing_is_named(tmp_path: Path) -> None:
    refused = asyncio.run(_ask_live(tmp_path, "nobody"))
    assert isinstance(refused, ClusterError)
    assert refused.reason is Reason.API_FORBIDDEN
    assert "list resourceslices in resource.k8s.io" in str(refused)


@pytest.mark.process
def test_who_a_credential_program_says_we_are_is_who_asks(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "nobody"},
    }
    login = tmp_path / "login"
    login.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    login.chmod(0o755)
    refused = asyncio.run(_ask_live(tmp_path, "", program="./login"))
    assert isinstance(refused, ClusterError)
    assert refused.reason is Reason.API_FORBIDDEN


@pytest.mark.process
def test_a_credential_program_that_is_missing_is_told_with_a_way_around(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"login cannot be run: No such file") as caught:
        asyncio.run(_ask_live(tmp_path, "", program="./login"))
    assert "kubectl get" in caught.value.hint


async def _ask_live(folder: Path, token: str, *, program: str = "") -> ClusterObjects | ClusterError:
    async with ApiServer(users={"nobody": User("nobody")}) as server:
        async with ApiClient(access_from_url(server.url)) as admin:
            await admin.create(paths.NAMESPACES, {"metadata": {"name": "team-a"}})
            await admin.create(paths.DEVICE_CLASSES, CLASS)
            await admin.create(paths.resource_claims("team-a"), CLAIM)
        server.write_kubeconfig(folder / "kubeconfig", token=token)
        if program:
            have_it_asked(folder / "kubeconfig", {"command": program})
        options = argparse.Namespace(kubeconfig=str(folder / "kubeconfig"), context="")
        try:
            return await asyncio.to_thread(fetch_live, options)
        except ClusterError as error:
            return error
