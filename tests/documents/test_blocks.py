"""Every fenced block of README and docs is run or judged here, or says why it is not."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from dranet.cel import DeviceExpression
from dranet.claims.config import decode
from dranet.cli.main import main
from dranet.model.parameters.network import NetworkConfig
from dranet.settings import load_settings
from testbed.debian.packages import Unavailable, cache_folder
from testbed.prometheus import Promtool, fetch_promtool
from tests.documents.blocks import REPOSITORY, Block, list_blocks, list_pages
from tests.documents.commands import iter_commands
from tests.documents.kinds import OWN_TESTS, Kind, Reason, classify, list_rules, read_documents
from tools.pages.examples import fill_page


def of_kind(kind: Kind) -> list[Block]:
    return [block for block in list_blocks() if classify(block) is kind]


def test_every_block_is_classified() -> None:
    unknown = [
        f"{block} [{block.language}] {block.mark}" for block in list_blocks() if classify(block) is None
    ]
    assert unknown == []


def test_most_blocks_are_run_or_judged() -> None:
    idle = {*of_kind(Kind.NOT_RUN), *of_kind(Kind.OUTPUT)}
    assert len(idle) < len(list_blocks()) / 3
    assert all(of_kind(kind) for kind in Kind), "a kind that no block has"
    assert {block.mark for block in of_kind(Kind.NOT_RUN)} == set(Reason), "a reason that no block has"


@pytest.mark.parametrize(("page", "test"), [(page, test) for (page, _), test in OWN_TESTS.items()])
def test_the_test_of_a_block_reads_its_page(page: str, test: str) -> None:
    text = (REPOSITORY / test).read_text()
    assert Path(page).name in text


@pytest.mark.parametrize("page", sorted({block.page for block in of_kind(Kind.SESSION)}))
def test_sessions_print_what_the_page_says(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    assert fill_page(text) == text


@pytest.mark.parametrize("block", of_kind(Kind.COMMANDS), ids=str)
def test_commands_are_taken_by_their_programs(block: Block) -> None:
    checks = pytest.importorskip("tests.documents.checks")
    assert [said for command in iter_commands(block.text) for said in checks.complain(command)] == []


@pytest.mark.parametrize("block", of_kind(Kind.COMMANDS), ids=str)
def test_commands_that_need_no_cluster_run(block: Block, tmp_path: Path) -> None:
    checks = pytest.importorskip("tests.documents.checks")
    commands = list(filter(checks.can_run, iter_commands(block.text)))
    if commands:
        checks.prepare_folder(tmp_path)
    with contextlib.chdir(tmp_path):
        for command in commands:
            with redirect_stdout(io.StringIO()) as printed:
                code = main(command[1:])
            assert code == 0, (command, printed.getvalue())
            if command[1:3] == ("claim", "new"):
                Path("job.yaml").write_text(printed.getvalue())


def test_the_check_sees_commands_that_can_run() -> None:
    checks = pytest.importorskip("tests.documents.checks")
    commands = [command for block in of_kind(Kind.COMMANDS) for command in iter_commands(block.text)]
    assert sum(map(checks.can_run, commands)) >= 10


@pytest.mark.parametrize("block", of_kind(Kind.MANIFEST), ids=str)
def test_manifests_are_valid(block: Block) -> None:
    """By the published schemas; ``tests/cli`` and ``tests/tools/manifests`` judge claims and classes."""
    published = pytest.importorskip("tests.tools.manifests.chart.published")
    for item in read_documents(block):
        if item["apiVersion"].partition("/")[0] not in FOREIGN_GROUPS:
            published.check(item, (34, 37))


FOREIGN_GROUPS = {"kind.x-k8s.io", "kustomize.config.k8s.io", "k8s.cni.cncf.io", "security.openshift.io"}
"""Files of programs, and objects that others define."""


@pytest.mark.parametrize("block", of_kind(Kind.PARAMETERS), ids=str)
def test_parameters_are_right(block: Block) -> None:
    for parameters in read_documents(block):
        config, problems = decode(NetworkConfig, parameters)
        assert problems == []
        assert config is not None


@pytest.mark.parametrize("block", of_kind(Kind.VALUES), ids=str)
def test_values_are_taken_by_the_chart(block: Block) -> None:
    rendering = pytest.importorskip("tests.tools.manifests.chart.rendering")
    for values in read_documents(block):
        with_digest = json.loads(json.dumps(values).replace("sha256:...", f"sha256:{64 * '0'}"))
        assert rendering.render(with_digest)


@pytest.mark.parametrize("block", of_kind(Kind.SETTINGS), ids=str)
def test_settings_are_taken(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(block.text)
    load_settings({}, {}, file)


@pytest.mark.parametrize("block", of_kind(Kind.EXPRESSION), ids=str)
def test_expressions_compile(block: Block) -> None:
    texts = [block.text]
    if block.language == "yaml":
        (document,) = read_documents(block)
        texts = [selector["cel"]["expression"] for selector in document["selectors"]]
    for text in texts:
        DeviceExpression(text, "dra.net")


def test_expressions_in_sentences_compile() -> None:
    """Those that are whole; a table has ``\\|`` for a bar."""
    pages = [
        page.read_text()
        for page in list_pages()
        if page.parent.name in ("guides", "networking", "commands", "operations", "reference")
    ]
    found = {one for text in pages for one in re.findall(r"`(device\.[^`]+)`", text) if "..." not in one}
    assert len(found) > 10
    for expression in found:
        DeviceExpression(expression.replace(r"\|", "|"), "dra.net")


@pytest.fixture(scope="module")
def promtool() -> Promtool:
    try:
        return fetch_promtool(cache_folder("promtool"), print)
    except Unavailable as shortage:
        pytest.skip(f"promtool: {shortage}")


@pytest.mark.process
@pytest.mark.parametrize("block", of_kind(Kind.SCRAPING), ids=str)
def test_prometheus_reads_its_configuration(block: Block, promtool: Promtool, tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(block.text)
    done = promtool.run("check", "config", "--syntax-only", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_queries_and_rules_are_read_by_prometheus(promtool: Promtool, tmp_path: Path) -> None:
    blocks = of_kind(Kind.QUERY)
    rules = [{"record": f"query:{n}", "expr": b.text} for n, b in enumerate(blocks) if b.language == "promql"]
    rules += [rule for block in blocks for rule in list_rules(block)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "docs", "rules": rules}]}))
    done = promtool.run("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "xml": ET.fromstring,
    "python": lambda text: compile(text, "page", "exec"),
    "yaml": yaml.safe_load,
}


@pytest.mark.parametrize("block", of_kind(Kind.DATA), ids=str)
def test_data_is_of_its_format(block: Block) -> None:
    READERS[block.language](block.text)
