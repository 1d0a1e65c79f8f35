"""Request paths of the API objects that the driver and the testbed touch.

Names are percent-encoded, though valid Kubernetes names never need it: a name that came from outside
must not be able to reach another path.
"""

from __future__ import annotations

from urllib.parse import quote

_CORE = "/api/v1"
_APPS = "/apis/apps/v1"
_RESOURCE = "/apis/resource.k8s.io/v1"

NODES = f"{_CORE}/nodes"
NAMESPACES = f"{_CORE}/namespaces"
RESOURCE_SLICES = f"{_RESOURCE}/resourceslices"
DEVICE_CLASSES = f"{_RESOURCE}/deviceclasses"
DEVICE_TAINT_RULES = f"{_RESOURCE}/devicetaintrules"


def _namespaced(base: str, plural: str, namespace: str) -> str:
    """The collection in one namespace; of all namespaces when ``namespace`` is empty."""
    if not namespace:
        return f"{base}/{plural}"
    return f"{base}/namespaces/{quote(namespace, safe='')}/{plural}"


def _item(collection: str, name: str, subresource: str = "") -> str:
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no object name under {collection}")
    item = f"{collection}/{quote(name, safe='')}"
    return f"{item}/{subresource}" if subresource else item


def node(name: str) -> str:
    return _item(NODES, name)


def node_status(name: str) -> str:
    return _item(NODES, name, "status")


def namespace(name: str) -> str:
    return _item(NAMESPACES, name)


def pods(namespace: str = "") -> str:
    return _namespaced(_CORE, "pods", namespace)


def pod(namespace: str, name: str) -> str:
    return _item(pods(namespace), name)


def pod_status(namespace: str, name: str) -> str:
    return _item(pods(namespace), name, "status")


def pod_binding(namespace: str, name: str) -> str:
    return _item(pods(namespace), name, "binding")


def events(namespace: str = "") -> str:
    return _namespaced(_CORE, "events", namespace)


def event(namespace: str, name: str) -> str:
    return _item(events(namespace), name)


def config_maps(namespace: str = "") -> str:
    return _namespaced(_CORE, "configmaps", namespace)


def config_map(namespace: str, name: str) -> str:
    return _item(config_maps(namespace), name)


def daemon_set(namespace: str, name: str) -> str:
    return _item(_namespaced(_APPS, "daemonsets", namespace), name)


def resource_slice(name: str) -> str:
    return _item(RESOURCE_SLICES, name)


def device_class(name: str) -> str:
    return _item(DEVICE_CLASSES, name)


def resource_claims(namespace: str = "") -> str:
    return _namespaced(_RESOURCE, "resourceclaims", namespace)


def resource_claim(namespace: str, name: str) -> str:
    return _item(resource_claims(namespace), name)


def resource_claim_status(namespace: str, name: str) -> str:
    return _item(resource_claims(namespace), name, "status")


def resource_claim_templates(namespace: str = "") -> str:
    return _namespaced(_RESOURCE, "resourceclaimtemplates", namespace)


def resource_claim_template(namespace: str, name: str) -> str:
    return _item(resource_claim_templates(namespace), name)


def name_collection(path: str) -> tuple[str, bool]:
    """What a path leads to: the plural, with its subresource (``resourceclaims/status``), and whether that is
    a whole collection. Empty for a path that does not belong to the API's objects."""
    _, _, rest = path.partition("/v1/")
    parts = rest.split("/") if rest else []
    if len(parts) > 2 and parts[0] == "namespaces":
        del parts[:2]
    if not parts:
        return "", False
    return "/".join((parts[0], *parts[2:])), len(parts) == 1
