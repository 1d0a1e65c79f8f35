"""The objects of a live cluster, with the rights of the user who asks."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dranet.cluster import paths
from dranet.cluster.client import ApiClient, fetch_snapshot
from dranet.cluster.kubeconfig import read_context_namespace
from dranet.errors import ClusterError, Reason, SettingsError

_COLLECTIONS: Mapping[str, Callable[[str], str]] = {
    "ResourceSlice": lambda _: paths.RESOURCE_SLICES,
    "DeviceClass": lambda _: paths.DEVICE_CLASSES,
    "ResourceClaim": lambda _: paths.resource_claims(),
    "ResourceClaimTemplate": paths.resource_claim_templates,
    "Pod": paths.pods,
    "Node": lambda _: paths.NODES,
}
"""The path of each kind, for a namespace or all. Claims of all namespaces have devices."""

_TAINT_RULES = tuple(
    f"/apis/resource.k8s.io/{version}/devicetaintrules" for version in ("v1", "v1beta2", "v1alpha3")
)
"""Served by few clusters, each in a version of its time."""

DRIVER_PODS = {"app.kubernetes.io/part-of": "dranet", "app.kubernetes.io/component": "driver"}
"""The labels that the chart gives the driver's pods."""
DRIVER_SELECTOR = ",".join(f"{name}={value}" for name, value in DRIVER_PODS.items())

_NO_V1 = "the cluster serves no resource.k8s.io/v1, which takes Kubernetes 1.34"
_WITHOUT_A_CLUSTER = "without a kubeconfig here: kubectl get ... -A -o json | dranet ... -f -"
_WITHOUT_RIGHTS = (
    "the chart's ClusterRole dranet-viewer has the rights; or ask an administrator for the objects in a file "
    "(-f)"
)
_NO_ANSWER = "is the cluster up, and does the kubeconfig name its server? kubectl version asks the same one"
_FROM_FILES = "objects can also come from files: -f FILE, or --capture CAPTURE"

_T = TypeVar("_T")

Found = tuple[str, dict[str, Any]]
"""Where it was found, in words, and the object."""


def fetch(options: argparse.Namespace, kinds: Sequence[str]) -> list[Found]:
    """All objects of these kinds."""
    return ask(_fetch(make_client(options), kinds, getattr(options, "namespace", "")))


def ask(answer: Coroutine[Any, Any, _T]) -> _T:
    """What the cluster answers; where it does not, its error names what to check."""
    try:
        return asyncio.run(answer)
    except ClusterError as error:
        if error.reason is not Reason.API_UNAVAILABLE or error.status or error.hint:
            raise
        raise ClusterError(error.message, reason=error.reason, hint=_NO_ANSWER) from error


def make_client(options: argparse.Namespace) -> ApiClient:
    """The cluster of ``--kubeconfig`` and ``--context``, as kubectl finds it. Raises SettingsError."""
    file = _find_kubeconfig(options.kubeconfig)
    if file is None:
        return _make_client_in_pod()
    try:
        return ApiClient.from_kubeconfig(
            file, context=options.context, user_agent="dranet-cli", may_run_program=True
        )
    except SettingsError as error:
        hint = "; ".join(filter(None, (error.hint, _WITHOUT_A_CLUSTER)))
        raise SettingsError(error.message, hint=hint) from error


def find_namespace(options: argparse.Namespace) -> str:
    """The namespace of the context that :func:`make_client` takes; empty where it names none."""
    file = _find_kubeconfig(options.kubeconfig)
    return read_context_namespace(file, options.context) if file is not None else ""


def _make_client_in_pod() -> ApiClient:
    try:
        return ApiClient.from_in_cluster()
    except SettingsError as error:
        raise SettingsError(
            "no cluster to ask: neither --kubeconfig nor $KUBECONFIG nor ~/.kube/config names one, and this "
            "is not a pod with a service account",
            hint=_FROM_FILES,
        ) from error


def _find_kubeconfig(chosen: str) -> Path | None:
    """As kubectl looks for it, but of several in ``KUBECONFIG`` the first that exists."""
    if chosen:
        return Path(chosen).expanduser()
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    for file in (*named, Path("~/.kube/config").expanduser()):
        if file.exists():
            return file
    if named:
        raise SettingsError(f"KUBECONFIG: {named[0]} does not exist", hint=_FROM_FILES)
    return None


async def _fetch(client: ApiClient, kinds: Sequence[str], namespace: str) -> list[Found]:
    async with client:
        source = f"the cluster at {client.url}"
        bodies: list[dict[str, Any]] = []
        for kind in kinds:
            if kind == "DeviceTaintRule":
                bodies += await _list_permitted_taint_rules(client)
            else:
                bodies += await _list(client, _COLLECTIONS[kind](namespace))
        return [(source, body) for body in bodies]


async def _list(client: ApiClient, path: str) -> tuple[dict[str, Any], ...]:
    try:
        return (await fetch_snapshot(client, path)).items
    except ClusterError as error:
        if error.reason is Reason.API_NOT_FOUND:
            raise ClusterError(_NO_V1, status=error.status, reason=error.reason) from error
        if error.reason is not Reason.API_FORBIDDEN:
            raise
        hint = "; ".join(filter(None, (error.hint, _WITHOUT_RIGHTS)))
        raise ClusterError(error.message, status=error.status, reason=error.reason, hint=hint) from error


async def _list_permitted_taint_rules(client: ApiClient) -> tuple[dict[str, Any], ...]:
    """None where this user may not list them, which the standard error then has."""
    try:
        return await _list_taint_rules(client)
    except ClusterError as error:
        if error.reason is not Reason.API_FORBIDDEN:
            raise
        print(
            "note: this user may not list DeviceTaintRules: their taints are not looked at", file=sys.stderr
        )
        return ()


async def _list_taint_rules(client: ApiClient) -> tuple[dict[str, Any], ...]:
    """None where the cluster has no such kind."""
    for path in _TAINT_RULES:
        try:
            return (await fetch_snapshot(client, path)).items
        except ClusterError as error:
            if error.reason is not Reason.API_NOT_FOUND:
                raise
    return ()


class Query(NamedTuple):
    """What to list of one kind, of all namespaces."""

    path: str
    label_selector: str = ""
    field_selector: str = ""


async def fetch_permitted(
    client: ApiClient, queries: Mapping[str, Query]
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """List each kind, all at the same time and page by page.

    Returns:
        By kind what there is, and the kinds that this user may not list.
    """
    async with client:
        answers = await asyncio.gather(*(_try(client, kind, query) for kind, query in queries.items()))
    by_kind = dict(zip(queries, answers, strict=True))
    found = {kind: list(items) for kind, items in by_kind.items() if items is not None}
    return found, [kind for kind, items in by_kind.items() if items is None]


async def _try(client: ApiClient, kind: str, query: Query) -> tuple[dict[str, Any], ...] | None:
    """``None`` without the right to list them."""
    try:
        if kind == "DeviceTaintRule":
            return await _list_taint_rules(client)
        return (
            await fetch_snapshot(
                client, query.path, label_selector=query.label_selector, field_selector=query.field_selector
            )
        ).items
    except ClusterError as error:
        if error.reason is Reason.API_FORBIDDEN:
            return None
        if error.reason is Reason.API_NOT_FOUND:
            raise ClusterError(_NO_V1, status=error.status, reason=error.reason) from error
        raise
