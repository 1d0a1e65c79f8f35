"""What ``claim new`` would write, in a clause: for the fixes of other commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dranet.desk.templates.choose import Choice
from dranet.desk.templates.request import ClaimRequest


def describe_command(request: ClaimRequest) -> str:
    """The command that writes the claim."""
    words = ["dranet claim new", f"--gpus {request.gpus} --nics {request.nics}"]
    words += [f"--bandwidth {request.amount}"] if request.bandwidth else []
    words += ["--no-rdma"] if request.rdma is False else []
    words += [f"--gpu-resource {request.gpu_resource}"] if request.gpu_resource else []
    words += ["--each-numa"] if request.each_numa else []
    words += [f"--gpu-part {request.gpu_part}"] if request.gpu_part else []
    words += [f"--gpu-class {request.gpu_class}"] if request.gpu_class else []
    words += [f"--class {request.nic_class}"] if request.nic_class else []
    return " ".join(words)


def describe_constraint(choice: Choice, requests: Sequence[str] = ()) -> str:
    """The constraint that aligns its devices; where it is more than one, how the claim aligns them.

    Args:
        requests: names for the constraint; by default those that ``claim new`` gives.
    """
    shape = choice.attempt.shape
    if len(shape.constraints) != 1 or len(shape.relations) != 1:
        return shape.title
    constraint = shape.constraints[0]
    return describe_match(constraint["matchAttribute"], requests or constraint["requests"])


def describe_match(attribute: str, requests: Iterable[str]) -> str:
    """A constraint as it is written in a claim."""
    return f"constraints: [{{matchAttribute: {attribute}, requests: [{', '.join(requests)}]}}]"
