"""What is restored of a device after its pod, as a page, from where it is declared."""

from __future__ import annotations

from collections.abc import Iterable

from tools.pages.restored_table import NOT_RESTORED, list_restored

_HEAD = """# What is restored after a pod

Generated from `tools/pages/restored_table.py` and `hardware.py` by `make docs`; a test fails when it
is stale.

Prepare records the state of a NIC before its pod has it. After the pod the driver writes what differs and
reads it again. It logs what still differs.

A NIC's driver tells only some of these. What it does not tell at Prepare is neither recorded nor restored. An
answer with another error than "not supported" is logged once (`not recorded and not restored`), and refuses
only a claim that sets this part.

| restored | limits |
|---|---|
"""

_MIDDLE = """
## Not restored

| not restored | why, or what to do |
|---|---|
"""

_TAIL = """
## Tenants with NET_ADMIN

A container with the capability `NET_ADMIN` can set most of what is on this page while it has the NIC. What
the first table lists is as before for the next pod. What the second lists is not, so on nodes of tenants that
do not trust each other:

- Do not give `NET_ADMIN` to their containers. Claims set what a workload needs, and the
  [tenant policy](admission.md) says what they may.
- Give them virtual functions. A VF reaches less of the card than its PF.
- Where they need `NET_ADMIN` on a PF, reset the card between them: `mlxfwreset -d ADDRESS reset`, or
  `echo 1 > /sys/bus/pci/devices/ADDRESS/reset` while no pod has it.
"""


def restored_page() -> str:
    """``docs/user/restored.md``."""
    rows = _table((row.what, row.limits or "-") for row in list_restored())
    return _HEAD + rows + _MIDDLE + _table(NOT_RESTORED.items()) + _TAIL


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"| {first} | {second} |\n" for first, second in rows)
