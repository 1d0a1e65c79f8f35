"""The page on permissions and the manifests in ``deploy``, made from the table in
``dranet.cluster.permissions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from dranet.cluster.admission_policy import build_policies
from dranet.cluster.permissions import PERMISSIONS, Permission, build_rbac

_HEAD = """# What the driver may do, and why

Generated from `dranet/cluster/permissions.py` by `make docs`; a test fails when it is stale, when the code
asks for more, and when it asks for less.

`deploy/rbac.yaml` gives the driver's service account these rights and no others. There is no wildcard, no
right on Secrets or ConfigMaps, and none to change a pod, a node or the spec of a claim. `dranet doctor` asks
the server which of them it has (`SelfSubjectAccessReview`), as everybody may who is authenticated.

| resource | verbs | why | when |
|---|---|---|---|
"""

_TAIL = """
## Bound to its node

RBAC cannot say "only slices of your own node". `deploy/admission-policy.yaml` does, with two
ValidatingAdmissionPolicies that speak of the driver's service account alone:

* **Slices**: created, changed and deleted only when `spec.nodeName` is the node in the driver's token,
  `spec.driver` is this driver, and the pool is named after the node. A pool is what consumers take the
  newest generation of, so a pool in another node's name would make that node's devices disappear.
* **Claim status**: only entries of this driver; allocation and `reservedFor` stay as they are.

They need tokens that name the node (Kubernetes 1.30 and later, on by default) and a pod's own token: with a
kubeconfig from elsewhere there is no node in it, and every write is refused.

From Kubernetes 1.36 the server itself gives rights on claim status by driver and node:
`associated-node:patch` on `resourceclaims/driver` works only for a claim that is allocated on the node of
the token. Where this right is missing, the status cannot be written, and everything else works.

## Another name

Both files hold the driver's name (`dra.net`), namespace (`dranet-system`) and service account (`dranet`).
With the setting `driver_name`, change it in both: in `resourceNames`, and in the expressions. How to apply
the files, and to change them on the way: [deploy](../../deploy/README.md).
"""

_FILE_HEAD = """# {about}
# Generated from {source} by `make docs`; a test fails when it is stale.
"""


def permissions_page() -> str:
    """``docs/user/permissions.md``."""
    return _HEAD + "".join(map(_row, PERMISSIONS)) + _TAIL


def _row(permission: Permission) -> str:
    verbs = ", ".join(f"`{verb}`" for verb in permission.verbs)
    group = f" ({permission.group})" if permission.group else ""
    name = ", of this driver's name" if permission.only_driver else ""
    return f"| `{permission.resource}`{group}{name} | {verbs} | {permission.why} | {permission.when} |\n"


def build_manifests() -> Mapping[str, str]:
    """File name below ``deploy`` -> text."""
    rbac = _FILE_HEAD.format(
        about="What the driver may do; why, line by line: docs/user/permissions.md",
        source="dranet/cluster/permissions.py",
    )
    policy = _FILE_HEAD.format(
        about="The driver writes only what belongs to its own node and name: docs/user/permissions.md",
        source="dranet/cluster/admission_policy.py",
    )
    return {
        "rbac.yaml": rbac + _to_yaml(build_rbac()),
        "admission-policy.yaml": policy + _to_yaml(build_policies()),
    }


class _Dumper(yaml.SafeDumper):
    """Without anchors: each part is written out where it stands."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _to_yaml(documents: Sequence[object]) -> str:
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110, explicit_start=True)
