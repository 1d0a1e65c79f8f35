"""``docs/user/values.md``: the values as a table."""

from __future__ import annotations

from collections.abc import Iterator

from tools.manifests.values.chart import FORMER, VALUES
from tools.manifests.values.file import in_one_line
from tools.manifests.values.value import Value, walk

_HEAD = """# Values of the Helm chart

Generated from `tools/manifests/values/` by `make docs`; a test fails when it is stale.

`helm show values ./charts/dranet` prints the same with comments. What is not in this list is refused, with
its place. [Settings](settings.md) has what `settings` takes, [installing](install.md) how values are used.
"""

_FORMER_HEAD = """
## Coming from DraNet's chart

`image`, `imagePullSecrets`, `nameOverride`, `fullnameOverride`, `rbac.create`, `serviceAccount.annotations`,
`podAnnotations`, `podLabels`, `nodeSelector`, `affinity`, `tolerations`, `resources`, `extraVolumes` and
`extraVolumeMounts` mean the same here. The others are refused, and the message has the new name:

| there | here |
|---|---|
"""


def values_page() -> str:
    former = "".join(f"| `{path}` | {_cell(new)} |\n" for path, new in FORMER.items())
    return _HEAD + "".join(_sections()) + _FORMER_HEAD + former


def _sections() -> Iterator[str]:
    for top in VALUES:
        if top.section:
            yield f"\n## {top.section}\n\n| value | default | meaning |\n|---|---|---|\n"
        yield from (_row(path, value) for path, value in walk([top]))


def _row(path: str, value: Value) -> str:
    default = "" if value.is_object else f"`{in_one_line(value.default)}`"
    return f"| `{path}` | {default} | {_cell(value.help)} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n- ", "<br>• ").replace("\n", "<br>")
