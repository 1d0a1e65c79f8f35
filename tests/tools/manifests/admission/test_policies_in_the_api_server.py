"""The policies as a cluster has them: what ``kubectl apply`` hears, denied, warned of, or as a dry run."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("cel_expr_python", reason="the CEL engine is not installed")

from testbed.apiserver.admission import Evaluation
from testbed.apiserver.server import ApiServer
from tests.tools.manifests.admission.evaluation import complaints
from tools.manifests.parameters_policy import LEFT_TO_PREPARE, build_parameters_policy
from tools.manifests.tenant_policy import LABEL, POWERFUL, build_tenant_policy

pytestmark = pytest.mark.socket

Json = dict[str, Any]
REPOSITORY = Path(__file__).parents[4]
PAGE = REPOSITORY / "docs/guides/admission.md"
DETAILS = REPOSITORY / "docs/reference/admission.md"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
DENIED = "ValidatingAdmissionPolicy 'dranet-parameters' with binding 'dranet-parameters' denied request"


def a_claim(parameters: Json) -> Json:
    config = [{"opaque": {"driver": "dra.net", "parameters": parameters}}]
    requests = [{"name": "nic", "exactly": {"deviceClassName": "dranet"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "fast-nic"},
        "spec": {"devices": {"requests": requests, "config": config}},
    }


def send(server: ApiServer, method: str, path: str, body: Json) -> tuple[int, Json, str]:
    """Status, answer and the Warning header."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), answer.headers.get("Warning") or ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers.get("Warning") or ""


async def ask(
    manifests: list[Json], method: str, path: str, body: Json, before: list[tuple[str, Json]] | None = None
) -> tuple[int, Json, str]:
    async with ApiServer(manifests=manifests) as server:
        for way, earlier in before or ():
            verb, _, where = way.partition(" ")
            await asyncio.to_thread(send, server, verb, where, earlier)
        return await asyncio.to_thread(send, server, method, path, body)


async def test_a_wrong_claim_is_refused_with_every_mistake() -> None:
    wrong = a_claim({"interface": {"mtu": 70000, "dhcp": "yes"}})
    status, answer, _ = await ask(build_parameters_policy(), "POST", CLAIMS, wrong)
    assert (status, answer["reason"]) == (422, "Invalid")
    path = "spec.devices.config[0].opaque.parameters.interface"
    assert answer["message"] == (
        f'resourceclaims.resource.k8s.io "fast-nic" is forbidden: {DENIED}: '
        f"{path}.dhcp: must be true or false, not 'yes'; {path}.mtu: must be at most 65535, not 70000"
    )


async def test_a_right_one_passes_without_a_word() -> None:
    right = a_claim({"interface": {"mtu": 9000}})
    assert (await ask(build_parameters_policy(), "POST", CLAIMS, right))[::2] == (201, "")


async def test_a_dry_run_is_judged_and_keeps_nothing() -> None:
    wrong = a_claim({"interface": {"mtu": 70000}})
    status, _, _ = await ask(build_parameters_policy(), "POST", f"{CLAIMS}?dryRun=All", wrong)
    assert status == 422


async def test_to_warn_is_to_let_pass() -> None:
    wrong = a_claim({"interface": {"mtu": 70000}})
    status, _, warning = await ask(build_parameters_policy(actions=("Warn", "Audit")), "POST", CLAIMS, wrong)
    assert status == 201
    assert warning.startswith('299 - "Validation failed for ValidatingAdmissionPolicy')
    assert "must be at most 65535, not 70000" in warning


async def test_a_policy_without_a_binding_is_not_in_force() -> None:
    wrong = a_claim({"interface": {"mtu": 70000}})
    assert (await ask(build_parameters_policy()[:1], "POST", CLAIMS, wrong))[0] == 201


async def test_an_expression_that_fails_refuses_unless_it_is_to_be_ignored() -> None:
    for failure_policy, status in (("Fail", 422), ("Ignore", 201)):
        policy, binding = build_parameters_policy(failure_policy=failure_policy)
        policy["spec"]["validations"] = [{"expression": "object.spec.nothing.there == 1"}]
        policies = [policy, binding]
        assert (await ask(policies, "POST", CLAIMS, a_claim({})))[0] == status


def test_a_null_that_the_engine_hands_over_is_counted() -> None:
    """Before, each took one away from ``None``, until Python ended with a fatal error."""
    evaluation = Evaluation({}, {"object": {"a": None, "b": [None, {"c": None}]}, "oldObject": None})
    before = sys.getrefcount(None)
    for _ in range(500):
        assert evaluation.evaluate("object") == {"a": None, "b": [None, {"c": None}]}
        assert evaluation.evaluate("oldObject") is None
    assert abs(sys.getrefcount(None) - before) < 500


async def test_a_label_on_the_namespace_is_what_the_tenant_policy_asks_for() -> None:
    claim = a_claim({"interface": {"hardwareAddr": "02:00:00:00:00:01"}})
    status, answer, _ = await ask(build_tenant_policy(), "POST", CLAIMS, claim)
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert f'is for namespaces with the label {LABEL}: "true"' in answer["message"]
    trusted = {"metadata": {"name": "trusted", "labels": {LABEL: "true"}}}
    path = CLAIMS.replace("default", "trusted")
    made = [("POST /api/v1/namespaces", trusted)]
    assert (await ask(build_tenant_policy(), "POST", path, claim, made))[0] == 201


def iter_manifests() -> list[tuple[str, Json]]:
    """Every claim, template and class of the documentation and the examples."""
    found = []
    for file in sorted([*REPOSITORY.glob("docs/*/*.md"), *REPOSITORY.glob("examples/**/*.y*ml")]):
        if file == PAGE:
            continue  # whose claims are there to be refused
        text = file.read_text()
        blocks = text.split("```yaml\n")[1:] if file.suffix == ".md" else [text + "```"]
        for block in blocks:
            try:
                documents = list(yaml.safe_load_all(block.partition("```")[0]))
            except yaml.YAMLError:
                continue
            found += [(file.name, one) for one in documents if _is_judged(one)]
    return found


def _is_judged(document: Any) -> bool:
    kinds = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
    return isinstance(document, dict) and document.get("kind") in kinds and bool(document.get("metadata"))


def test_every_documented_manifest_passes() -> None:
    manifests = iter_manifests()
    wrong = {(name, one["metadata"].get("name")): complaints(one) for name, one in manifests}
    assert len(manifests) > 20
    assert {at: lines for at, lines in wrong.items() if lines} == {}


def test_the_page_says_what_is_powerful_and_what_is_left_to_prepare() -> None:
    page = " ".join(DETAILS.read_text().split())
    assert [one.path for one in POWERFUL if f"| `{one.path}` | {one.why} |" not in page] == []
    assert [row for row in LEFT_TO_PREPARE if f"- {row}" not in page] == []


async def test_the_messages_of_the_page_are_those_of_the_api_server() -> None:
    """Each block of text after a manifest is what its refusal says."""
    page = PAGE.read_text()
    shown = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    texts = [block.partition("```")[0] for block in page.split("```text\n")[1:]]
    policies = [*build_parameters_policy(), *build_tenant_policy()]
    refused = []
    for block in shown:
        document = yaml.safe_load(block)
        if _is_judged(document):
            plural = (
                f"{document['kind'].lower()}es"
                if document["kind"] == "DeviceClass"
                else f"{document['kind'].lower()}s"
            )
            path = CLAIMS.replace("resourceclaims", plural)
            path = path.replace("/namespaces/default", "") if plural == "deviceclasses" else path
            _, answer, _ = await ask(policies, "POST", path, document)
            refused.append(answer.get("message", ""))
    assert texts
    for text in texts:
        assert " ".join(text.split()) in [" ".join(one.split()) for one in refused]
