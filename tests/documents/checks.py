"""The words of commands, judged by program: would it take them?"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from dranet.cli.main import main, parse_arguments
from tests.documents.blocks import REPOSITORY
from tests.documents.commands import Command
from tests.tools.manifests.chart.rendering import helm, render

Complaint = str
_TARGETS = frozenset(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
_VERBS = frozenset({
    "api-resources", "apply", "config", "cordon", "create", "debug", "delete", "describe", "drain", "edit",
    "exec", "get", "label", "logs", "patch", "port-forward", "rollout", "uncordon", "wait",
})  # fmt: skip
_HELM = frozenset({"install", "upgrade", "template", "uninstall", "rollback", "show", "package"})
_OF_FILE = re.compile(r"^(?:\./)?(?:charts|deploy|examples|docs|tests)/")


def complain(command: Command) -> list[Complaint]:
    """What is wrong with a command; nothing of programs that are not judged."""
    judge = _JUDGES.get(command[0].removeprefix(".venv/bin/"))
    if judge is None:
        return []
    absent = [word for word in command if _OF_FILE.match(word) and not (REPOSITORY / word).exists()]
    return [f"{word}: there is none" for word in absent] + list(judge(command[1:]))


def _judge_dranet(words: Command) -> Iterator[Complaint]:
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            parse_arguments(words)
    except SystemExit as end:  # 0 after --help
        if end.code:
            yield f"dranet {shlex.join(words)}: {said.getvalue()}"


def _judge_make(words: Command) -> Iterator[Complaint]:
    for word in words:
        if "=" not in word and word not in _TARGETS:
            yield f"make {word}: there is no such target"


def _judge_python(words: Command) -> Iterator[Complaint]:
    if words[0] == "-m" and find_spec(words[1]) is None:
        yield f"python -m {words[1]}: there is no such module"


def _judge_kubectl(words: Command) -> Iterator[Complaint]:
    """The verb, and what is called inside of a pod."""
    if "--" in words:
        at = words.index("--")
        words, inside = words[:at], words[at + 1 :]
        if inside[0] == "dranet":
            yield from _judge_dranet(inside[1:])
    if not _VERBS & set(words[:3]):
        yield f"kubectl {shlex.join(words)}: no verb"


def _judge_helm(words: Command) -> Iterator[Complaint]:
    if words[0] not in _HELM:
        yield f"helm {words[0]}: no such command"
    if words[0] in ("install", "upgrade", "template") and any(
        word.endswith("charts/dranet") for word in words
    ):
        values, name, namespace = _read_helm(words[1:])
        try:
            render(values, name, namespace)
        except helm.HelmError as error:
            yield f"helm {shlex.join(words)}: {error}"


def _read_helm(words: Command) -> tuple[dict[str, Any], str, str]:
    """What ``--set`` and ``--set-string`` give, the release's name and its namespace."""
    values: dict[str, Any] = {}
    names, namespace = list[str](), "default"
    rest = iter(words)
    for word in rest:
        flag, _, value = word.partition("=")
        if flag in ("--set", "--set-string"):
            _merge(values, value or next(rest), is_text=flag == "--set-string")
        elif flag in ("-n", "--namespace"):
            namespace = value or next(rest)
        elif flag in ("-f", "--values"):
            _update(values, REPOSITORY / (value or next(rest)))
        elif flag == "--timeout":
            _ = value or next(rest)
        elif not word.startswith("-"):
            names.append(word)
    return values, names[0], namespace


def _update(values: dict[str, Any], file: Path) -> None:
    """With a file of this repository; one of the reader's own says nothing here."""
    if file.exists():
        values |= yaml.safe_load(file.read_text())


def _merge(values: dict[str, Any], text: str, *, is_text: bool) -> None:
    for pair in re.split(r"(?<!\\),", text):
        path, _, value = pair.partition("=")
        *parents, last = (part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", path))
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value.replace("\\,", ",") if is_text else _read_scalar(value)


def _read_scalar(text: str) -> object:
    if text.startswith("{") and text.endswith("}"):
        return text[1:-1].split(",")
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


_JUDGES: Mapping[str, Callable[[Command], Iterator[Complaint]]] = {
    "dranet": _judge_dranet,
    "make": _judge_make,
    "python": _judge_python,
    "kubectl": _judge_kubectl,
    "helm": _judge_helm,
}


def can_run(command: Command) -> bool:
    """A ``dranet`` that reads captures and files, and needs nothing else."""
    options = {"--capture", "--facts", "--facts-file", *OF_A_CLUSTER} & set(command)
    reads = bool(options) or command[1:2] == ("validate",)
    is_ours = command[0].removeprefix(".venv/bin/") == "dranet"
    return is_ours and reads and not {"run", "--live", "--watch"} & set(command)


OF_A_CLUSTER = ("cluster.json", "cluster.yaml")
"""What pages have ``kubectl get`` write."""


def prepare_folder(folder: Path) -> None:
    """Where the captures and files lie that the pages name."""
    for name in ("tests", "examples", "charts", "deploy"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "node.json").symlink_to(REPOSITORY / "tests/data/dgx-h100/capture.json")
    with redirect_stdout(io.StringIO()) as slices:
        main(["devices", "-o", "slices", "--capture", str(folder / "node.json")])
    texts = (slices.getvalue(), (REPOSITORY / "deploy/deviceclasses.yaml").read_text())
    items = [item for text in texts for item in yaml.safe_load_all(text) if item]
    for name in OF_A_CLUSTER:
        (folder / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
