"""The page ``docs/user/attributes.md``, from the catalogue."""

from __future__ import annotations

from dranet.model.attributes import (
    CATALOGUE,
    DOMAIN,
    MAX_ATTRIBUTES_PER_DEVICE,
    MAX_VALUE_BYTES,
    MAX_VALUES_PER_DEVICE,
    PLACES,
    Attribute,
)


def attributes_page() -> str:
    """``docs/user/attributes.md``."""
    shown = sorted(CATALOGUE, key=lambda a: (a.domain != DOMAIN, a.domain, a.name.lower()))
    return "\n".join([*_PAGE_HEAD, *map(_render_row, shown), *_PAGE_TAIL]) + "\n"


def _render_row(a: Attribute) -> str:
    kind = f"{a.type} or list" if a.has_list_form else str(a.type)
    place = "always" if a.essential else str(PLACES[a.qualified] + 1)
    omitted = a.omitted_when or "never"
    return f"| `{a.qualified}` | {kind} | {a.meaning} | {omitted} | {a.stability} | {place} |"


_PAGE_HEAD = (
    "# Attributes",
    "",
    "<!-- Generated from dranet/model/attributes.py; do not edit. -->",
    "",
    "What a ResourceSlice says about each device. Select on it in a DeviceClass or a claim:",
    "",
    "```yaml",
    "selectors:",
    "- cel:",
    "    expression: >-",
    '      device.driver == "dra.net" && device.attributes["dra.net"].rdma &&',
    '      device.attributes["dra.net"].?ifName.orValue("").startsWith("eth")',
    "```",
    "",
    "An attribute that a device lacks is an error in CEL, not false, and stops the scheduling of the pod.",
    "Test with `has(...)` or `.?name.orValue(...)` each attribute that is left out at times. While a pod has",
    "a device, the slice keeps the values from before the pod got it.",
    "",
    "## When a device has too many",
    "",
    f"Kubernetes takes {MAX_ATTRIBUTES_PER_DEVICE} attributes of a device, {MAX_VALUES_PER_DEVICE} values",
    "with the items of lists. One that knows more keeps them in this order (`attributesLeftOut` in `dranet",
    "devices -o json` and a line in the log name the rest):",
    "",
    "1. those whose place is `always`;",
    "2. the operator's own (setting `attributes_file`), by name;",
    "3. those that the setting `prefer_attributes` names, in its order;",
    "4. the others by their place, the lowest number first.",
    "",
    "So these fit on every device, together with five of the operator's own: what DraNet says of all",
    "interfaces, the nearest GPUs, and the place among the virtual functions. Addresses and names of BPF",
    "programs come and go while the node runs. They have a late place, because otherwise one more address",
    "could cost a device what claims align by. If your claims select by them, name them in",
    "`prefer_attributes`.",
    "",
    "## Catalogue",
    "",
    "*Kubernetes standard* and *as in DraNet*: name, type and texts are theirs. *Ours, kept*: meant to stay",
    "as it is. *Ours, may change*: look into the changelog when you upgrade.",
    "[What holds it](compatibility.md#what-may-change).",
    "",
    "| attribute | type | meaning | left out when | stability | place |",
    "|---|---|---|---|---|---|",
)
_PAGE_TAIL = (
    "",
    f"Strings are cut at {MAX_VALUE_BYTES} bytes, between characters, as the Kubernetes API wants it. What",
    "is not UTF-8 is left out. The domain `dra.net` stays the same whatever name the driver runs under.",
)
