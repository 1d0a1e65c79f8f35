"""``docs/user/alerts.md``: what each alert means and what to do, from where the alerts are declared."""

from __future__ import annotations

import re

from tools.manifests.monitoring.commands import NODE
from tools.manifests.monitoring.recordings import RECORDINGS
from tools.manifests.monitoring.rule import Alert, Severity
from tools.manifests.monitoring.rules import ALERTS

HEAD = """# Alerts

Generated from `tools/manifests/monitoring` by `make docs`; a test fails when it is stale. How to switch them
on: [monitoring.md](monitoring.md).

| severity | who is told | alerts |
|---|---|---|
| `critical` | somebody is woken: many nodes at once | {critical} |
| `warning` | a ticket, for the next working day | {warning} |
| `info` | those who look; nobody has to act | {info} |

One node, one NIC or one pod never wakes anybody. If it does in your house (a job of all nodes stands still
with one NIC), route `DranetPodNicDown` to the pager by its name. None of them fires on a node that works,
while an update rolls through, at a start, or on a node that was drained. A NIC that is switched on and has no
cable is a fault: switch it off on the node, or name the fault in `health_ignore`. In the commands `NODE`,
`NAMESPACE` and `POD` stand for what the notification has filled in.
"""

FOOT = """
## Recording rules

| series | what it is |
|---|---|
{rows}"""

_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
_VALUE = re.compile(r"\{\{ \$value[^}]*\}\}")


def alerts_page() -> str:
    """A section for each, under its name, as ``runbook_url`` has it."""
    lists = {str(one): _link([alert for alert in ALERTS if alert.severity is one]) for one in Severity}
    rows = "".join(f"| `{one.name}` | {one.about} |\n" for one in RECORDINGS)
    return HEAD.format(**lists) + "".join(map(_write_section, ALERTS)) + FOOT.format(rows=rows)


def _link(alerts: list[Alert]) -> str:
    return ", ".join(f"[{alert.name}](#{alert.anchor})" for alert in alerts)


def _write_section(alert: Alert) -> str:
    wait = f" for {alert.wait}" if alert.wait else ""
    refs = ", ".join(f"[{ref.partition('#')[0]}]({ref})" for ref in dict.fromkeys(alert.refs))
    return f"""
## {alert.name}

`{alert.severity}`: {_fill(alert.summary)}.

{alert.meaning}

```
{_fill(alert.command)}
```

{alert.mend} More: {refs}.

```promql
{alert.expr}
```

Fires when that holds{wait or " once"}.
"""


def _fill(text: str) -> str:
    """As a person reads it, who fills in what is in capitals."""
    text = _LABEL.sub(lambda found: found[1].upper(), text.replace(NODE, "NODE"))
    return _VALUE.sub("N", text)
