"""Update the outputs in pages of the documentation whose code blocks begin with ``$ dranet ...``.

Such a block has one command and its output, run in the root of the repository and in a pipe. A test fails
when a page is stale; ``make docs`` rewrites it."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from dranet.cli.main import EXIT_FAILED, main

PAGES = (
    "commands/claim-new.md",
    "commands/explain.md",
    "commands/fabric.md",
    "commands/nodes.md",
    "guides/gb200-gb300.md",
    "guides/gpus-by-nvidia-dra.md",
    "commands/topology.md",
    "reference/messages.md",
    "commands/validate.md",
    "reference/claim-new-rules.md",
    "reference/explain-output.md",
)
PICTURES = {
    "commands/topology-dgx-h100.svg": "topology --facts tests/data/dgx-h100/capture.json -o svg",
    "networking/fabric.svg": "fabric -f tests/data/fleet/two-units.json -o svg",
}
"""File below ``docs`` -> the command that draws it."""
_DGX, _AZURE = "--facts tests/data/dgx-h100/capture.json", "--facts tests/data/azure-nd-h100-v5/capture.json"
_PLUGIN = "--gpu-resource nvidia.com/gpu --publish-gpus never"


def _beside_vendor(machine: str) -> str:
    """A machine of ``tests/data`` whose GPUs are published by their vendor's DRA driver."""
    return f"--facts tests/data/{machine}/capture.json -f tests/data/{machine}/gpu-slices.yaml"


_NVIDIA_DGX, _NVIDIA_AZURE = _beside_vendor("dgx-h100"), _beside_vendor("azure-nd-h100-v5")
_GB200, _GB300, _OCI = map(_beside_vendor, ("gb200-nvl72", "azure-gb300", "oci-gb200"))
MANIFESTS = {
    "dgx-h100/one-gpu-one-nic.yaml": f"claim new {_DGX}",
    "dgx-h100/two-gpus-two-nics.yaml": f"claim new --gpus 2 --nics 2 {_DGX}",
    "dgx-h100/eight-gpus-eight-nics.yaml": f"claim new --gpus 8 --nics 8 {_DGX}",
    "dgx-h100/whole-node.yaml": f"claim new --per-node {_DGX}",
    "dgx-h100/rails.yaml": f"claim new --gpus 8 --nics 8 --rails {_DGX}",
    "dgx-h100/nic-of-each-numa-node.yaml": f"claim new --each-numa {_PLUGIN} {_DGX}",
    "dgx-h100/nvidia-one-gpu-one-nic.yaml": f"claim new {_NVIDIA_DGX}",
    "dgx-h100/nvidia-two-gpus-two-nics.yaml": f"claim new --gpus 2 --nics 2 {_NVIDIA_DGX}",
    "dgx-h100/nvidia-eight-gpus-eight-nics.yaml": f"claim new --gpus 8 --nics 8 {_NVIDIA_DGX}",
    "azure-nd-h100-v5/one-gpu-one-nic.yaml": f"claim new {_AZURE}",
    "azure-nd-h100-v5/nvidia-one-gpu-one-nic.yaml": f"claim new {_NVIDIA_AZURE}",
    "azure-nd-h100-v5/nvidia-whole-node-rails.yaml": f"claim new --per-node --rails {_NVIDIA_AZURE}",
    "azure-gb300/nvidia-one-gpu-one-nic.yaml": f"claim new {_GB300}",
    "azure-gb300/nvidia-two-gpus-two-nics.yaml": f"claim new --gpus 2 --nics 2 {_GB300}",
    "azure-gb300/nvidia-whole-node-rails.yaml": f"claim new --per-node --rails {_GB300}",
    "gb200-nvl72/nvidia-one-gpu-one-nic.yaml": f"claim new {_GB200}",
    "gb200-nvl72/nvidia-one-gpu-one-nic-lists.yaml": f"claim new --list-attributes true {_GB200}",
    "gb200-nvl72/nvidia-two-gpus-two-nics.yaml": f"claim new --gpus 2 --nics 2 {_GB200}",
    "gb200-nvl72/nvidia-whole-node-rails.yaml": f"claim new --per-node --rails {_GB200}",
    "oci-gb200/nvidia-one-gpu-two-nics.yaml": f"claim new --gpus 1 --nics 2 {_OCI}",
    "oci-gb200/nvidia-whole-node-rails.yaml": f"claim new --per-node --rails {_OCI}",
    "mi300x/amd-one-gpu-one-nic.yaml": f"claim new {_beside_vendor('mi300x')}",
}
"""File below ``examples`` -> the command that writes it."""

_BLOCK = re.compile(r"^```\n\$ dranet ([^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)


def fill_page(text: str) -> str:
    """Return the page with current outputs."""
    return _BLOCK.sub(lambda block: f"```\n$ dranet {block[1]}\n{print_out(block[1])}```", text)


def print_out(command: str) -> str:
    """Return the output of ``dranet COMMAND``.

    Raises:
        RuntimeError: the command's arguments or files are wrong.
    """
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
        code = main(command.split())
    if code not in (0, EXIT_FAILED):  # which reports findings or a refusal
        raise RuntimeError(f"dranet {command} ended with {code}: {printed.getvalue()}")
    return printed.getvalue()


def write_examples(folder: Path) -> None:
    """Bring pages and pictures in ``docs``, and the manifests in ``examples``, up to date."""
    for name in PAGES:
        page = folder / name
        page.write_text(fill_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name, command in PICTURES.items():
        (folder / name).write_text(print_out(command), encoding="utf-8")
    for name, command in MANIFESTS.items():
        file = folder.parent / "examples" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(print_out(command), encoding="utf-8")
