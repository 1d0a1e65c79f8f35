"""The page on permissions, made from the table in ``dranet.cluster.permissions``."""

from __future__ import annotations

from dranet.cluster.permissions import AUTHENTICATION_PERMISSIONS, PERMISSIONS, Permission

_HEAD = """# What the driver may do, and why

Generated from `dranet/cluster/permissions.py` by `make docs`; a test fails when it is stale, when the code
asks for more, and when it asks for less.

`deploy/rbac.yaml` gives the driver's service account these rights and no others. There is no wildcard, no
right on Secrets or ConfigMaps, and none to change a pod, a node or the spec of a claim. `dranet doctor` asks
the server which of them it has (`SelfSubjectAccessReview`), as everybody may who is authenticated.

| resource | verbs | why | when |
|---|---|---|---|
"""

_OPTIONAL = """
## Only with authentication of the metrics port

With the setting `metrics_authentication: kubernetes` ([who may see what](node-page.md)) the driver asks the
API server about those who read its metrics. The chart gives these rights then; `deploy/rbac.yaml` does not
have them.

| resource | verbs | why | when |
|---|---|---|---|
"""

_TAIL = """
## Bound to its node

RBAC cannot say "only slices of your own node". `deploy/admission-policy.yaml` does, with two
ValidatingAdmissionPolicies that speak of the driver's service account alone ([all policies](admission.md)):

* **Slices**: created, changed and deleted only when `spec.nodeName` is the node in the driver's token,
  `spec.driver` is this driver, and the pool is named after the node. A pool is what consumers take the
  newest generation of, so a pool in another node's name would make that node's devices disappear.
* **Claim status**: only entries of this driver and this node; allocation and `reservedFor` stay as they are.

They need tokens that name the node (Kubernetes 1.30 and later, on by default) and a pod's own token: with a
kubeconfig from elsewhere there is no node in it, and every write is refused.

From Kubernetes 1.36 the server itself gives rights on claim status by driver and node:
`associated-node:patch` on `resourceclaims/driver` works only for a claim that is allocated on the node of
the token. Where this right is missing, the status cannot be written, and everything else works.

## Another name

Role and policies hold the driver's name (`dra.net`), namespace (`dranet-system`) and service account
(`dranet`). The chart puts in what its values say ([installing](install.md#two-drivers-other-names)).
"""


def permissions_page() -> str:
    """``docs/user/permissions.md``."""
    optional = _OPTIONAL + "".join(map(_row, AUTHENTICATION_PERMISSIONS))
    return _HEAD + "".join(map(_row, PERMISSIONS)) + optional + _TAIL


def _row(permission: Permission) -> str:
    verbs = ", ".join(f"`{verb}`" for verb in permission.verbs)
    group = f" ({permission.group})" if permission.group else ""
    name = ", of this driver's name" if permission.only_driver else ""
    return f"| `{permission.resource}`{group}{name} | {verbs} | {permission.why} | {permission.when} |\n"
