"""Claims that no honest kubelet or user sends: names, sizes, numbers and shapes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.kubelet.plugin import NAME_MAX_CHARACTERS, UID_MAX_CHARACTERS, sort_refs
from dranet.model.claim import ClaimRef
from testbed.cluster import DRIVER_NAME, NAMESPACE
from tests.contract.driver_node import NIC, DrivenNode, Result
from tests.hostile.vitals import unharmed

shared_node = pytest.mark.shared_node
pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

MANY = 300
PARAMETERS_MAX_BYTES = 10 * 1024
"""The API's limit (``resource.k8s.io/v1``, OpaqueParametersMaxLength)."""
ERROR_MAX_CHARACTERS = 128 * 1024
"""All mistakes at once, a line each; the kubelet takes 4 MiB."""
BAD_UIDS = (
    "../../outside",
    "/tmp/outside",
    "..",
    "a/b",
    "a\0b",
    "u" * 300,
    "with space",
    "ünïcode",
    "new\nline",
    "-dash",
)
HARMLESS = {"nothing", "many addresses", "many routes"}
"""Much, but not wrong."""


def _nested(depth: int) -> Any:
    shape: Any = 1
    for _ in range(depth):
        shape = [shape]
    return shape


NASTY: dict[str, Any] = {
    "nested": {"interface": _nested(150)},
    "nested folders": json.loads('{"a":' * 150 + "1" + "}" * 150),
    "a huge name": {"interface": {"name": "x" * 9000}},
    "many addresses": {"interface": {"addresses": ["10.0.0.1/8"] * 600}},
    "many routes": {"routes": [{"destination": f"10.{n % 256}.0.0/16"} for n in range(250)]},
    "unicode": {"interface": {"name": "\u202e\ufeff\U0001f4a9" * 400}},
    "control characters": {"interface": {"name": "\u0000\u001b[2J\n" * 500}},
    "numbers out of range": {"interface": {"mtu": 10**4000}},
    "less than nothing": {"interface": {"mtu": -(2**63) - 1}},
    "many keys": {f"key{n}": n for n in range(600)},
    "nothing": {},
}


@shared_node
async def test_a_uid_that_is_a_path_prepares_nothing_and_writes_nothing(node: DrivenNode) -> None:
    work_dir = node.testbed.places.work_dir
    refs = [ClaimRef(NAMESPACE, "claim", uid) for uid in BAD_UIDS]
    async with unharmed(node):
        before = _list_files(work_dir)
        answers = await node.calls.prepare(refs)
        assert {uid for uid, answer in answers.claims.items() if answer.error} == set(BAD_UIDS)
        assert all("cannot be the UID" in answer.error for answer in answers.claims.values())
        gone = await node.calls.unprepare(refs)
        assert not any(answer.error for answer in gone.claims.values())
        assert _list_files(work_dir) <= before  # a passing name of the driver's may have passed
        assert not node.stored()


@shared_node
async def test_a_name_that_is_a_path_fails_its_claim_alone(node: DrivenNode) -> None:
    good = await node.claim("good", Result(NIC))
    bad = [
        ClaimRef(NAMESPACE, "..", "11111111-0000-4000-8000-000000000001"),
        ClaimRef("../kube-system", "good", "11111111-0000-4000-8000-000000000002"),
        ClaimRef(NAMESPACE, "n" * 254, "11111111-0000-4000-8000-000000000003"),
        ClaimRef("", "good", "11111111-0000-4000-8000-000000000004"),
    ]
    async with unharmed(node):
        answers = await node.calls.prepare([good, *bad])
        assert not answers.claims[good.uid].error
        assert all("cannot be the name" in answers.claims[ref.uid].error for ref in bad)
        await node.calls.unprepare([good])


@shared_node
async def test_one_uid_for_two_claims_prepares_neither_and_twice_the_same_is_one(node: DrivenNode) -> None:
    first, second = await node.claim("first", Result(NIC)), await node.claim("second", Result(NIC))
    thief = ClaimRef(NAMESPACE, second.name, first.uid)
    answers = await node.calls.prepare([first, thief, first])
    assert "two claims have the UID" in answers.claims[first.uid].error
    assert not node.stored()
    answers = await node.calls.prepare([first] * 50)
    assert list(answers.claims) == [first.uid]
    assert not answers.claims[first.uid].error


@shared_node
async def test_hundreds_of_claims_in_one_call_are_answered_in_the_kubelets_time(node: DrivenNode) -> None:
    unknown = [ClaimRef(NAMESPACE, f"unknown-{n}", f"22222222-0000-4000-8000-{n:012d}") for n in range(MANY)]
    good = await node.claim("among-many", Result(NIC))
    async with unharmed(node):
        begin = time.monotonic()
        answers = await node.calls.prepare([*unknown, good])
        assert time.monotonic() - begin < 30
        assert not answers.claims[good.uid].error
        assert sum("does not exist" in answer.error for answer in answers.claims.values()) == MANY
        gone = await node.calls.unprepare([*unknown, good])
        assert not any(answer.error for answer in gone.claims.values())


@shared_node
async def test_parameters_of_every_nasty_shape_fail_their_claim_and_nothing_else(node: DrivenNode) -> None:
    async with unharmed(node):
        for number, (kind, parameters) in enumerate(NASTY.items()):
            ref = await _claim_with(node, f"nasty-{number}", parameters)
            begin = time.monotonic()
            answer = (await node.calls.prepare([ref])).claims[ref.uid]
            assert time.monotonic() - begin < 5, kind
            assert answer.error or kind in HARMLESS, kind
            assert len(answer.error) < ERROR_MAX_CHARACTERS, (kind, len(answer.error))
            await node.calls.unprepare([ref])


async def _claim_with(node: DrivenNode, name: str, parameters: Any) -> ClaimRef:
    """Allocated with a config, as the scheduler copies it from the spec."""
    assert len(json.dumps(parameters)) <= PARAMETERS_MAX_BYTES
    opaque = {"driver": DRIVER_NAME, "parameters": parameters}
    return await node.claim(name, Result(NIC), config=[{"source": "FromClaim", "opaque": opaque}])


def _list_files(folder: Path) -> set[str]:
    """But for what the node itself and the log do."""
    found = {
        f"{path}/{name}"
        for place in ("state", "cdi", "kubelet")
        for path, folders, files in os.walk(folder / place)
        for name in (*folders, *files)
    }
    return {path for path in found if not path.endswith(("-wal", "-shm"))} | {
        str(p) for p in folder.iterdir()
    }


@given(st.lists(st.builds(ClaimRef, st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))))
def test_any_names_are_good_or_have_a_complaint_and_never_lead_out_of_a_folder(refs: list[ClaimRef]) -> None:
    good, bad = sort_refs(refs)
    assert {ref.uid for ref in good} | bad.keys() == {ref.uid for ref in refs}
    assert not {ref.uid for ref in good} & bad.keys()
    for ref in good:
        assert Path("/folder", ref.uid).resolve().parent == Path("/folder")
        assert len(ref.uid) <= UID_MAX_CHARACTERS
        assert max(len(ref.name), len(ref.namespace)) <= NAME_MAX_CHARACTERS
        assert ref.uid.isascii()
    assert all(complaint.isprintable() for complaint in bad.values())


def test_what_an_api_server_makes_is_good() -> None:
    refs = [
        ClaimRef("default", "n" * NAME_MAX_CHARACTERS, "0b51c6a2-7d3f-4c19-9e5c-000000000001"),
        ClaimRef("n" * 63, "a.b-c", "0b51c6a27d3f4c199e5c000000000001"),
    ]
    assert sort_refs(refs) == (tuple(refs), {})
