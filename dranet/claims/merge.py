"""One config over another, as JSON, field by field.

Objects and maps merge, everything else replaces, lists too. ``null`` is as absent. What nobody knows is
carried along, for the decoder to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

from dranet.model.network import SUB_INTERFACE_TYPES, InterfaceConfig, NetworkConfig
from dranet.model.network_part import Part, PartField, fields_of

Json = dict[str, object]


def merge(base: Mapping[str, object], over: Mapping[str, object], part: type[Part] = NetworkConfig) -> Json:
    """``over`` wins. No deeper than the fields of ``part`` go, whatever the nesting of the input."""
    merged = _outdate(base, over) if part is InterfaceConfig else dict(base)
    fields = fields_of(part)
    for name, value in over.items():
        field = fields.get(name)
        if field is None or (value is not None and not (_nests(field) and isinstance(value, Mapping))):
            merged[name] = value
        elif isinstance(value, Mapping):
            below = merged.get(name)
            merged[name] = _merge_below(below if isinstance(below, Mapping) else {}, value, field)
    return merged


def _nests(field: PartField) -> bool:
    return field.is_map or (field.part is not None and not field.is_list)


def _merge_below(base: Mapping[str, object], over: Mapping[str, object], field: PartField) -> Json:
    if field.part:
        return merge(base, over, field.part)
    return {**base, **{name: value for name, value in over.items() if value is not None}}


def _outdate(interface: Mapping[str, object], over: Mapping[str, object]) -> Json:
    """Without what was said for another type than ``over`` chooses."""
    chosen = over.get("type")
    outdated = [kind for kind in SUB_INTERFACE_TYPES if chosen is not None and kind != chosen]
    return {name: value for name, value in interface.items() if name not in outdated}
