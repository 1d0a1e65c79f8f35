"""Objects whose owners are gone: what the garbage collector of Kubernetes would delete."""

from __future__ import annotations

from collections.abc import Iterator

from dranet.desk.kubeapi.kinds import KINDS, JsonObject
from testbed.apiserver.objects import Target
from testbed.apiserver.rest import Rest
from testbed.apiserver.store import Key, Store


def collect_orphans(store: Store, rest: Rest) -> list[str]:
    """Delete every object all of whose owners are of a served kind and do not exist any more (by uid: a new
    Node of the same name is another one); returns their names. Once, not until nothing more is found."""
    living = {body["metadata"]["uid"] for _, body in _iter_all(store)}
    orphans = [key for key, body in _iter_all(store) if _is_orphan(body, living)]
    for kind, namespace, name in orphans:
        rest.delete(Target(kind, namespace, name), {})
    return [name for _, _, name in orphans]


def _iter_all(store: Store) -> Iterator[tuple[Key, JsonObject]]:
    for kind in KINDS:
        yield from store.iter_objects(kind)


def _is_orphan(body: JsonObject, living: set[str]) -> bool:
    served = {(kind.api_version, kind.kind) for kind in KINDS}
    owners = body["metadata"].get("ownerReferences") or []
    return bool(owners) and all(
        (owner["apiVersion"], owner["kind"]) in served and owner["uid"] not in living for owner in owners
    )
