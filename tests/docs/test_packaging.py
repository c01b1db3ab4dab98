"""What a package index and an installed package say of the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import treesnap
from libsystem import VOLUMES

PROJECT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())
HOME = "https://github.com/treesnap/treesnap"


def changed_since_release() -> tuple[str, str]:
    """Returns what the changelog has that is unreleased, and the newest release, if any."""
    text = (PROJECT / "CHANGELOG.md").read_text()
    unreleased, *released = re.split(r"^## \[([\d.]+)\] - .*$", text, flags=re.MULTILINE)
    found = re.search(r"^## \[Unreleased\]\n(.*)", unreleased, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found is not None else "", (released or ["0.0"])[0]


def test_version_says_whether_the_code_is_released():
    unreleased, newest = changed_since_release()
    numbers, _, development = treesnap.__version__.partition(".dev")

    assert (development != "") == (unreleased != "")
    if unreleased:
        assert tuple(map(int, numbers.split("."))) > tuple(map(int, newest.split(".")))
    else:
        assert numbers == newest


def test_index_page_has_absolute_links_alone():
    hook = SETTINGS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (PROJECT / "README.md").read_text()
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)

    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    ours = [target.removeprefix(f"{HOME}/blob/main/") for target in targets if "/blob/" in target]
    raw = [target.rpartition("/main/")[2] for target in targets if "raw." in target]
    assert raw
    missing = [path for path in [*ours, *raw] if not (PROJECT / path.partition("#")[0]).exists()]
    assert missing == []


@pytest.mark.parametrize("name", ["Documentation", "Source", "Issues", "Changelog", "Security"])
def test_project_urls_are_of_one_repository_and_name_files_that_exist(name):
    url = SETTINGS["project"]["urls"][name]

    assert url.startswith(HOME)
    path = url.partition("/blob/main/")[2]
    assert not path or (PROJECT / path).is_file()


def test_install_lines_of_the_readme_name_the_package_and_say_that_it_is_unreleased():
    text = (PROJECT / "README.md").read_text()

    assert "pipx install treesnap" in text
    assert "uv tool install treesnap" in text
    assert ("not released" in text) == (".dev" in treesnap.__version__)


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((PROJECT / ".github" / "workflows" / f"{name}.yml").read_text())


def test_each_python_that_is_promised_is_tested_and_the_bare_machine_too():
    jobs = workflow("tests")["jobs"]
    promised = re.findall(
        r":: (3\.\d+)$", "\n".join(SETTINGS["project"]["classifiers"]), re.MULTILINE
    )

    assert set(promised) < set(jobs["linux"]["strategy"]["matrix"]["python"])
    assert ".ci/run" in [step.get("run") for step in jobs["bare-machine"]["steps"]]


def test_workflows_of_other_systems_try_each_volume_and_name_what_is_there():
    jobs = workflow("other-systems")["jobs"]
    commands = " ".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    tried = {name.casefold() for name in jobs["volumes"]["strategy"]["matrix"]["volume"]}

    assert {name.casefold() for name in VOLUMES} - tried == {"smb"}  # which takes a server
    assert set(jobs["facts"]["strategy"]["matrix"]["machine"]) >= {"macos-latest", "ubuntu-latest"}
    assert jobs["freebsd"]["continue-on-error"]
    for path in re.findall(r"tests/[\w/]+(?:\.\w+)?", commands):
        assert (PROJECT / path).exists(), path


def test_a_release_is_uploaded_by_the_workflow_that_its_page_names():
    page = (PROJECT / "RELEASING.md").read_text()
    jobs = workflow("release")["jobs"]

    assert "release.yml" in page
    assert jobs["upload"]["environment"] in page
    assert jobs["upload"]["permissions"]["id-token"] == "write"
    wheels = jobs["wheels"]["steps"][2]["env"]["CIBW_BUILD"].replace("-*", "").split()
    assert [name for name in wheels if name not in page.replace("`cp311-abi3`", "`cp311`")] == []
    (command,) = re.findall(r"python (release/\w+\.py)", page)
    assert (PROJECT / command).is_file()
