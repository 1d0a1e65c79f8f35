"""The admission policies that bind the driver to its own node and its own name.

RBAC cannot express "only slices of the node that you run on": a token from one node could publish devices for
every other node, or remove theirs. The policies can, because the API server adds the node of the pod to the
user info of a service account's token (Kubernetes 1.30 and later). They apply only to the driver's service
account; an optional third one keeps all other users from writing the driver's slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from dranet.cluster.permissions import DRIVER_NAME, NAMESPACE, SERVICE_ACCOUNT
from tools.manifests.cel_text import quote, quote_all

JsonObject = dict[str, Any]

SLICES = "dranet-slices"
CLAIM_STATUS = "dranet-claim-status"
SLICE_OWNERS = "dranet-slice-owners"

CONTROL_PLANE = (
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:storage-version-migrator-controller",
)
"""The users that remove slices of deleted nodes and that rewrite objects in another version. If controllers
have no accounts of their own, it is the first one. Kubelets are recognised by their group."""

_GROUP = "admissionregistration.k8s.io/v1"
_NODE = {
    "name": "node",
    "expression": "request.userInfo.?extra['authentication.kubernetes.io/node-name'][?0].orValue('')",
}
_NO_NODE = {
    "expression": "variables.node != ''",
    "message": "the token does not name the node of the driver: it must be bound to a pod",
    "reason": "Forbidden",
}


class Driver(Struct, frozen=True):
    """The driver that the policies apply to. The chart replaces placeholders by names."""

    name: str = DRIVER_NAME
    namespace: str = NAMESPACE
    service_account: str = SERVICE_ACCOUNT

    @property
    def user_name(self) -> str:
        """The name of its service account as a user of the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.service_account}"


def build_policies(
    driver: str = DRIVER_NAME, namespace: str = NAMESPACE, service_account: str = SERVICE_ACCOUNT
) -> list[JsonObject]:
    """Return two policies, each with its binding."""
    owner = Driver(driver, namespace, service_account)
    is_driver = f"request.userInfo.username == {quote(owner.user_name)}"
    slices = [
        *_object_and_old(),
        _NODE,
        {"name": "spec", "expression": "variables.subject.?spec.orValue({})"},
        {"name": "pool", "expression": "variables.spec.?pool.?name.orValue('')"},
    ]
    return [
        *_policy(
            SLICES,
            resources=["resourceslices"],
            operations=["CREATE", "UPDATE", "DELETE"],
            conditions=[{"name": "is-the-driver", "expression": is_driver}],
            variables=slices,
            validations=list(_iter_slice_rules(driver)),
        ),
        *_policy(
            CLAIM_STATUS,
            resources=["resourceclaims/status"],
            operations=["UPDATE"],
            conditions=[{"name": "is-the-driver", "expression": is_driver}],
            variables=[
                _NODE,
                {"name": "status", "expression": "object.?status.orValue({})"},
                {"name": "before", "expression": "oldObject.?status.orValue({})"},
                {"name": "entries", "expression": "variables.status.?devices.orValue([])"},
                {"name": "entriesBefore", "expression": "variables.before.?devices.orValue([])"},
            ],
            validations=list(_iter_status_rules(driver)),
        ),
    ]


def build_slice_owners(owner: Driver | None = None, admins: Sequence[str] = ()) -> list[JsonObject]:
    """Return a policy that lets only the driver, the node's kubelet, the control plane and ``admins`` write
    slices in the driver's name. Without it any user that may write slices could offer devices that do not
    exist."""
    owner = owner or Driver()
    names = [owner.user_name, *CONTROL_PLANE, *admins]
    of_driver = (
        f"[object, oldObject].exists(o, o != null && o.?spec.?driver.orValue('') == {quote(owner.name)})"
    )
    known = f"request.userInfo.username in {quote_all(names)}"
    kubelet = "'system:nodes' in request.userInfo.?groups.orValue([]) && request.operation == 'DELETE'"
    return [
        *_policy(
            SLICE_OWNERS,
            resources=["resourceslices"],
            operations=["CREATE", "UPDATE", "DELETE"],
            conditions=[{"name": "of-the-driver", "expression": of_driver}],
            variables=[],
            validations=[
                {
                    "expression": f"{known} || ({kubelet})",
                    "message": f"only the driver writes slices of {owner.name}, and users that the chart "
                    "names in admissionPolicies.sliceOwners.admins",
                    "reason": "Forbidden",
                }
            ],
        )
    ]


def _object_and_old() -> Iterator[JsonObject]:
    """The object to judge: a deletion has only the old one; for an update it is the new one, since driver and
    node cannot change."""
    yield {"name": "subject", "expression": "request.operation == 'DELETE' ? oldObject : object"}


def _iter_slice_rules(driver: str) -> Iterator[JsonObject]:
    yield _NO_NODE
    yield {
        "expression": "variables.spec.?nodeName.orValue('') == variables.node",
        "message": "the driver may write only slices of the node that it runs on",
        "reason": "Forbidden",
    }
    yield {
        "expression": f"variables.spec.?driver.orValue('') == '{driver}'",
        "message": f"the driver may write only slices of {driver}",
        "reason": "Forbidden",
    }
    # The driver may delete a slice that another user wrote in its name, whatever its pool.
    yield {
        "expression": f"request.operation == 'DELETE' || {_is_of_node('variables.pool')}",
        "message": "the driver may write only pools named after the node that it runs on",
        "reason": "Forbidden",
    }


def _is_of_node(pool: str) -> str:
    return f"({pool} == variables.node || {pool}.startsWith(variables.node + '/'))"


def _iter_status_rules(driver: str) -> Iterator[JsonObject]:
    """Before Kubernetes 1.36 the server does not check the driver and the node of entries."""
    yield _NO_NODE
    unchanged = " && ".join(
        f"variables.status.?{name}.orValue(null) == variables.before.?{name}.orValue(null)"
        for name in ("allocation", "reservedFor")
    )
    yield {
        "expression": unchanged,
        "message": "the driver may not change the allocation or the consumers of a claim",
        "reason": "Forbidden",
    }
    mine = f"(entry.driver == '{driver}' && {_is_of_node('entry.pool')})"
    yield {
        "expression": (
            f"variables.entries.all(entry, {mine} || entry in variables.entriesBefore) && "
            f"variables.entriesBefore.all(entry, {mine} || entry in variables.entries)"
        ),
        "message": f"the driver may write only the device entries of {driver} on the node that it runs on",
        "reason": "Forbidden",
    }


def _policy(
    name: str,
    *,
    resources: Sequence[str],
    operations: Sequence[str],
    conditions: Sequence[JsonObject],
    variables: Sequence[JsonObject],
    validations: Sequence[JsonObject],
) -> Iterator[JsonObject]:
    """Yield a policy for ``resource.k8s.io`` and the binding that enforces it."""
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1", "v1beta1", "v1beta2"],
        "resources": list(resources),
        "operations": list(operations),
    }
    yield {
        "apiVersion": _GROUP,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": list(conditions),
            **({"variables": list(variables)} if variables else {}),
            "validations": list(validations),
        },
    }
    yield {
        "apiVersion": _GROUP,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
