"""Kubeconfigs with a credential program, and a program that notes what it was given."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSION = "client.authentication.k8s.io/v1"

_NOTING = """#!{python}
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
seen = {{"arguments": sys.argv[1:], "info": info, "region": os.environ.get("REGION")}}
open({notes!r}, "w").write(json.dumps(seen))
status = {{"token": "from-the-program"}}
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}}))
"""


def have_it_asked(kubeconfig: Path, entry: Mapping[str, Any], cluster_config: object = None) -> None:
    """Give the only user of a kubeconfig in JSON this ``exec`` entry, and the cluster what is for it."""
    document = json.loads(kubeconfig.read_text())
    whole = {"apiVersion": VERSION, "interactiveMode": "Never", **entry}
    document["users"][0]["user"] = {"exec": whole}
    if cluster_config is not None:
        extension = {"name": "client.authentication.k8s.io/exec", "extension": cluster_config}
        document["clusters"][0]["cluster"]["extensions"] = [extension]
    kubeconfig.write_text(json.dumps(document))


def write_noting_program(path: Path, notes: Path) -> None:
    """It writes what it was given into ``notes``, and answers with a token."""
    path.write_text(_NOTING.format(python=sys.executable, notes=str(notes)))
    path.chmod(0o755)
