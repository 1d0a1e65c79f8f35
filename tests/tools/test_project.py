"""One address names where the project lives; all others follow from it, and one command moves them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from dranet import __version__
from tools.image.build import make_config
from tools.pages.chart import build_chart
from tools.project import REPOSITORY, Project, ProjectError, move, read_project, write_urls

HOME = "https://github.com/dra-nets/dranet"
ELSEWHERE = "https://git.example.org/another-owner/another-name"
PROJECT = read_project()

BY_HAND = ("pyproject.toml", "Dockerfile", "SECURITY.md", "SUPPORT.md")
"""Files with addresses that no generator writes."""


def test_the_addresses_of_a_project_on_github_are_those_of_github() -> None:
    project = Project(HOME)
    assert project.issues == f"{HOME}/issues"
    assert project.image == "ghcr.io/dra-nets/dranet"
    assert project.charts == "oci://ghcr.io/dra-nets/charts"
    assert project.page("docs/README.md") == f"{HOME}/blob/v{__version__}/docs/README.md"
    assert project.download("install.yaml") == f"{HOME}/releases/download/v{__version__}/install.yaml"
    assert not project.is_placeholder


@pytest.mark.parametrize("host", ["github.example.com", "example.org", "git.invalid", "localhost", "a.test"])
def test_a_host_that_nobody_can_own_is_no_home(host: str) -> None:
    assert Project(f"https://{host}/a/b").is_placeholder


@pytest.mark.parametrize("host", ["github.com", "example.com.org", "myexample.com", "gitlab.com"])
def test_other_hosts_are(host: str) -> None:
    assert not Project(f"https://{host}/a/b").is_placeholder


def test_every_url_of_the_package_follows_from_the_repository() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["urls"] == dict(PROJECT.urls), "run `make docs`"
    assert write_urls(text, PROJECT) == text


def test_every_url_of_the_chart_follows_from_the_repository() -> None:
    about = yaml.safe_load(build_chart(REPOSITORY / "charts/dranet")["Chart.yaml"])
    annotations = about["annotations"]
    (image,) = yaml.safe_load(annotations["artifacthub.io/images"])
    assert image["image"] == f"{PROJECT.image}:{__version__}"
    links = yaml.safe_load(annotations["artifacthub.io/links"])
    urls = [about["home"], about["icon"], *about["sources"], about["maintainers"][0]["url"]]
    for url in [*urls, *(link["url"] for link in links)]:
        assert url == PROJECT.repository or url.startswith(f"{PROJECT.repository}/")
    for url in [about["icon"], *(link["url"] for link in links)]:
        assert find_missing(url) == ""


def test_the_image_has_the_addresses() -> None:
    labels = make_config({})["Labels"]
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.source"] == PROJECT.repository
    assert find_missing(labels["org.opencontainers.image.documentation"]) == ""


def test_a_vulnerability_and_a_bug_have_an_address() -> None:
    assert f"<{PROJECT.security}>" in (REPOSITORY / "SECURITY.md").read_text()
    assert f"<{PROJECT.issues}>" in (REPOSITORY / "SUPPORT.md").read_text()


def test_every_page_of_the_project_that_a_file_links_to_is_there() -> None:
    for name in BY_HAND:
        for url in re.findall(
            rf"{re.escape(PROJECT.repository)}/(?:blob|raw)[^\s\"<>)\\]+", (REPOSITORY / name).read_text()
        ):
            assert find_missing(url) == "", name


def find_missing(url: str) -> str:
    """Return the file that an address of the project names, if it does not exist."""
    match = re.search(r"/(?:blob|raw)/[^/]+/([^#]+)", url)
    return match[1] if match and not (REPOSITORY / match[1]).is_file() else ""


@pytest.mark.process
def test_one_command_moves_the_project(tmp_path: Path) -> None:
    for name in BY_HAND:
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert set(move(ELSEWHERE, tmp_path)) == set(BY_HAND)
    assert read_project(tmp_path) == Project(ELSEWHERE)
    for name in BY_HAND:
        assert PROJECT.repository not in (tmp_path / name).read_text()
    assert Project(ELSEWHERE).security in (tmp_path / "SECURITY.md").read_text()


@pytest.mark.parametrize(
    "address", ["github.com/a/b", "https://github.com/a", "https://github.com/a/b/", "x"]
)
def test_what_is_no_repository_is_refused(address: str) -> None:
    with pytest.raises(ProjectError, match="write https://HOST/OWNER/NAME"):
        move(address)
