"""``docs/reference/alerts.md``: what each alert means and what to do, from the rule file of the chart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.monitoring import SEVERITIES, Alert, list_alerts, list_recordings
from tools.pages.page import fill, table

_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
_VALUE = re.compile(r"\{\{ \$value[^}]*\}\}")


def alerts_page() -> str:
    """Write a section for each alert, with its name as the heading, which ``runbook_url`` links to."""
    alerts = list_alerts()
    lists = {one: _link([alert for alert in alerts if alert.severity == one]) for one in SEVERITIES}
    recordings = table(("series", "what it is"), ((f"`{one.name}`", one.about) for one in list_recordings()))
    return fill("alerts.md", **lists, sections="".join(map(_write_section, alerts)), recordings=recordings)


def _link(alerts: list[Alert]) -> str:
    return ", ".join(f"[{alert.name}](#{alert.anchor})" for alert in alerts)


def _write_section(alert: Alert) -> str:
    wait = f" for {alert.wait}" if alert.wait else ""
    refs = ", ".join(f"[{name}](../{ref})" for name, ref in _name_refs(list(dict.fromkeys(alert.pages))))
    return f"""
## {alert.name}

`{alert.severity}`: {_fill(alert.summary)}.

{_fill(alert.meaning)}

```
{_fill(alert.command)}
```

{alert.remedy} More: {refs}.

```promql
{alert.expr}
```

Fires when that holds{wait or " once"}.
"""


def _name_refs(refs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """By the page, and by the section where two are of one page."""
    pages = Counter(ref.partition("#")[0] for ref in refs)
    for ref in refs:
        page, _, section = ref.partition("#")
        stem = Path(page).stem
        yield (stem if pages[page] == 1 else f"{stem}: {section.replace('-', ' ')}"), ref


def _fill(text: str) -> str:
    """Replace the template expressions of Prometheus by words in capitals for the reader to fill in."""
    text = _LABEL.sub(lambda found: found[1].upper(), text)
    return _VALUE.sub("N", text)
