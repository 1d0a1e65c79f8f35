"""What pages have people type to ``kubectl``, read by itself; the quickstart's against the stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from dranet.cli.main import main
from testbed.apiserver.server import ApiServer
from tests.documents.blocks import REPOSITORY, Block, list_blocks, list_pages
from tests.documents.commands import Command, iter_commands
from tests.documents.kinds import Kind, classify, read_documents
from tests.documents.kubectl import complain, find_kubectl

pytestmark = pytest.mark.process

CODE = re.compile(r"^\s*```.*?^\s*```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def kubectl() -> Path:
    return find_kubectl()


def in_blocks() -> Iterator[Command]:
    for block in list_blocks():
        if block.language == "" and classify(block) in (Kind.COMMANDS, Kind.NOT_RUN):
            yield from iter_commands(block.text)


def in_sentences() -> Iterator[Command]:
    for page in list_pages():
        for found in re.findall(r"`(kubectl [^`]*)`", CODE.sub("", page.read_text())):
            yield tuple(shlex.split(" ".join(found.split())))


def list_commands() -> list[Command]:
    """Each once, without those that are only named (``kubectl apply``)."""
    every = dict.fromkeys([*in_blocks(), *in_sentences()])
    return [one for one in every if one[0] == "kubectl" and len(one) > 2 and "..." not in one]


def test_kubectl_knows_every_flag_that_the_pages_give_it(kubectl: Path) -> None:
    commands = list_commands()
    assert len(commands) > 60
    assert [said for command in commands for said in complain(kubectl, command)] == []


Run = Callable[..., Awaitable[str]]


@pytest.fixture
async def run(kubectl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """``kubectl`` with these words, on a stand-in with everything that ``deploy/`` installs."""
    chart = pytest.importorskip("tests.tools.manifests.chart.cluster")
    chart.extend_server(monkeypatch)

    async def run(*words: str) -> str:
        command = (str(kubectl), "--kubeconfig", str(tmp_path / "config"), *words)
        done = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=REPOSITORY
        )
        said = (await done.communicate())[0].decode()
        assert done.returncode == 0, said
        return said

    async with ApiServer() as server:
        server.write_kubeconfig(tmp_path / "config")
        await run("apply", "-k", "deploy")
        yield run


async def test_the_quickstart_is_applied_and_deleted(run: Run) -> None:
    said = await run("apply", "-f", "docs/guides/quickstart/pod.yaml")
    assert "pod/first-nic created" in said
    assert "fast-nic" in await run("get", "resourceclaimtemplates")
    assert "dranet-rdma" in await run("get", "deviceclasses")
    await run("delete", "--wait=false", "-f", "docs/guides/quickstart/pod.yaml")
    assert "No resources found" in await run("get", "resourceclaimtemplates")


async def test_manifests_of_the_pages_are_accepted_beside_the_admission_policies(
    run: Run, tmp_path: Path
) -> None:
    await run("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    applied = 0
    for block in list_blocks():
        if classify(block) is Kind.MANIFEST and read_groups(block) <= SERVED and block.page not in REFUSED:
            file = tmp_path / "block.yaml"
            file.write_text(block.text)
            await run("apply", "-f", str(file))
            await run("delete", "--wait=false", "-f", str(file))  # others have objects of the same names
            applied += 1
    assert applied >= 6


SERVED = {"v1", "resource.k8s.io/v1"}
REFUSED = {"docs/guides/admission.md"}
"""Its claims are there to be refused, which a test of its own sees to."""


def read_groups(block: Block) -> set[str]:
    return {document["apiVersion"] for document in read_documents(block)}


async def test_what_kubectl_gets_is_enough_for_a_claim_and_for_why_a_pod_waits(
    run: Run, tmp_path: Path
) -> None:
    """The quickstart's way on a cluster with GPUs, where ``dranet`` has no kubeconfig of its own."""
    slices, cluster, job = tmp_path / "slices.yaml", tmp_path / "cluster.yaml", tmp_path / "job.yaml"
    slices.write_text(printed("devices", "-o", "slices", "--facts", "tests/data/dgx-h100/capture.json"))
    await run("create", "-f", str(slices))
    cluster.write_text(await run("get", "resourceslices,deviceclasses,nodes", "-o", "yaml"))
    job.write_text(printed("claim", "new", "-f", str(cluster), "--image", "registry.example.com/trainer"))
    assert "kind: DeviceClass" not in job.read_text(), "those of the cluster stay as they are"
    await run("apply", "-f", str(job))
    kinds = "resourceslices,deviceclasses,resourceclaims,resourceclaimtemplates,pods,nodes"
    cluster.write_text(await run("get", kinds, "-A", "-o", "json"))
    assert "it can be allocated" in printed("explain", "pod", "1-gpu-1-nic", "-f", str(cluster))


def printed(*words: str) -> str:
    """What ``dranet`` prints, of here."""
    with contextlib.chdir(REPOSITORY), redirect_stdout(io.StringIO()) as printed:
        assert main(words) == 0
    return printed.getvalue()
