"""Claims that several pods share, and pods with several claims, all at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

import pytest_asyncio

from dranet.cluster.client import ApiClient
from e2e.live_driver import is_ready
from e2e.objects import JsonObject, collection
from e2e.tests.pods import (
    RESOURCE,
    PodMaker,
    build_pod,
    build_request,
    build_spec,
    build_template,
    wait_until,
)

_SHARERS = ("first", "second", "third")
_REFUSALS = ("a network device can be in one pod only", "is prepared for pod")
"""By Prepare where it sees several pods, and by the container's hook where a pod came later."""


async def test_of_pods_that_share_a_claim_at_once_one_at_most_starts_and_the_last_gets_the_nic(
    pods: PodMaker,
) -> None:
    await _create_sharers(pods, build_spec(build_request()))
    await wait_until(lambda: _find_undecided(pods, _SHARERS), "each pod is ready or refused", 120)
    assert len(await _list_started(pods, _SHARERS)) <= 1

    started = await _list_started(pods, _SHARERS)
    *leaving, last = sorted(_SHARERS, key=lambda name: name not in started)
    for name in leaving:
        await pods.delete(name)
    pod = await pods.wait_ready(last)
    assert len(await pods.list_links(pod)) == 1
    assert await _list_consumers(pods) == [last]


async def test_pods_that_have_a_claim_one_after_the_other_each_have_the_nic(pods: PodMaker) -> None:
    await pods.create_claim("shared", build_spec(build_request()))
    for name in _SHARERS:
        await pods.create(build_pod(name, [], pods.image, ["shared"]))
        assert len(await pods.list_links(await pods.wait_ready(name))) == 1
        assert await _list_consumers(pods) == [name]
        await pods.delete(name)


async def test_pods_that_share_a_claim_of_a_gpu_all_have_it_until_the_last_has_ended(pods: PodMaker) -> None:
    await _create_sharers(pods, {"devices": {"requests": [build_request(device_class="dranet-gpu")]}})
    for name in _SHARERS:
        await pods.wait_ready(name)
    await pods.delete("first")
    seen = [await _list_device_nodes(pods, name) for name in ("second", "third")]
    assert seen[0] == seen[1]
    assert "/dev/nvidiactl" in seen[0]
    assert await _list_consumers(pods) == ["second", "third"]


async def test_of_many_claims_at_once_the_one_that_fails_names_its_error_and_the_others_are_prepared(
    locked_class: str, api: ApiClient, pods: PodMaker
) -> None:
    """Three pods with three claims each; one claim of one pod asks for what its DeviceClass locks."""
    templates = collection(RESOURCE, "ResourceClaimTemplate", pods.namespace)
    await api.create(templates, build_template("good"))
    bad = build_template("bad", parameters={"interface": {"mtu": 1400}})
    bad["spec"]["spec"]["devices"]["requests"] = [build_request(device_class=locked_class)]
    await api.create(templates, bad)
    good_pods = [build_pod(name, ["good"] * 3, pods.image) for name in ("left", "right")]
    mixed = build_pod("mixed", ["good", "bad", "good"], pods.image)
    await asyncio.gather(*(pods.create(pod) for pod in (*good_pods, mixed)))
    for name in ("left", "right"):
        assert len(await pods.list_links(await pods.wait_ready(name))) == 3

    async def is_reported() -> bool:
        return "interface.mtu" in await pods.explain("mixed")

    async def read_prepared() -> list[JsonObject]:
        """The condition of each claim, once all of them have it."""
        claims = await pods.fetch_claims(await pods.get("mixed"))
        found = [condition for claim in claims for condition in _find_conditions(claim, "Prepared")]
        return found if len(found) == len(claims) else []

    await wait_until(is_reported, "the kubelet reports the error")
    prepared = await wait_until(read_prepared, "each claim has a status")
    assert [condition["status"] for condition in prepared] == ["True", "False", "True"]
    assert prepared[1]["reason"] == "InvalidConfig"
    assert not _has_started(await pods.get("mixed"))


@pytest_asyncio.fixture
async def locked_class(api: ApiClient, namespace: str) -> AsyncIterator[str]:
    """A DeviceClass whose policy keeps the MTU to itself."""
    parameters = {"policy": {"lock": ["interface.mtu"]}}
    class_: JsonObject = {
        "apiVersion": RESOURCE,
        "kind": "DeviceClass",
        "metadata": {"name": f"{namespace}-locked"},
        "spec": {
            "selectors": [
                {"cel": {"expression": 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'}}
            ],
            "config": [{"opaque": {"driver": "dra.net", "parameters": parameters}}],
        },
    }
    name = class_["metadata"]["name"]
    path = f"/apis/{RESOURCE}/deviceclasses/{name}"
    await api.apply(path, class_, field_manager="dranet-e2e")
    yield name
    await api.delete(path)


async def _create_sharers(pods: PodMaker, spec: JsonObject) -> None:
    """One claim and three pods that name it, created at once."""
    await pods.create_claim("shared", spec)
    await asyncio.gather(*(pods.create(build_pod(name, [], pods.image, ["shared"])) for name in _SHARERS))


async def _find_undecided(pods: PodMaker, names: Iterable[str]) -> str:
    """The pods that are neither ready nor refused yet, with their Events."""
    texts = {name: await pods.explain(name) for name in names if not is_ready(await pods.get(name))}
    return "; ".join(
        f"{name}: {text}" for name, text in texts.items() if not any(refusal in text for refusal in _REFUSALS)
    )


async def _list_started(pods: PodMaker, names: Sequence[str]) -> list[str]:
    return [name for name in names if _has_started(await pods.get(name))]


def _has_started(pod: JsonObject) -> bool:
    """Whether a container of the pod runs, or has run."""
    statuses = pod["status"].get("containerStatuses", ())
    return any(status["restartCount"] or "waiting" not in status["state"] for status in statuses)


async def _list_consumers(pods: PodMaker) -> list[str]:
    claim = await pods.get_claim("shared")
    return sorted(consumer["name"] for consumer in claim["status"]["reservedFor"])


async def _list_device_nodes(pods: PodMaker, name: str) -> list[str]:
    assert pods.live.access.hands is not None
    uid = (await pods.get(name))["metadata"]["uid"]
    container = await pods.live.access.hands.inspect_container(uid)
    assert container is not None
    return sorted(container.devices)


def _find_conditions(claim: JsonObject, kind: str) -> list[JsonObject]:
    conditions = [one for entry in claim["status"].get("devices", ()) for one in entry["conditions"]]
    return [condition for condition in conditions if condition["type"] == kind]
