"""The man page: made from the reference, complete, readable by what reads man pages."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from treesnap.cli.commands import COMMANDS

PROJECT = Path(__file__).parents[2]
MAN = PROJECT / "docs" / "man"


def maker():
    specification = importlib.util.spec_from_file_location("man_page", MAN / "make_man_page.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A directory of its own with both pages."""
    script = maker()
    monkeypatch.setattr(script, "HERE", tmp_path)
    script.main()
    return tmp_path


def test_the_other_name_of_the_command_has_the_same_page(pages):
    assert (pages / "treesnap.1").read_text() == ".so man1/snap.1\n"


def test_every_command_has_its_entry(pages):
    text = (pages / "snap.1").read_text()
    entries = set(re.findall(r"^\.SS \\fBsnap ([a-z]+)", text, re.MULTILINE))

    assert entries == {name for section in COMMANDS.values() for name in section}


def test_wheel_installs_the_pages():
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    shared = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]

    assert shared == {
        f"docs/man/{name}.1": f"share/man/man1/{name}.1" for name in ("snap", "treesnap")
    }


@pytest.mark.parametrize(
    "command",
    [
        ["groff", "-man", "-ww", "-Tutf8", "-Kutf8"],
        ["mandoc", "-Tlint", "-Werror"],
        ["man", "-l", "--warnings"],
    ],
    ids=lambda command: command[0],
)
def test_page_is_read_without_a_complaint(command, pages):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")

    result = subprocess.run(
        [*command, str(pages / "snap.1")], capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stderr) == (0, "")
    if command[0] != "mandoc":
        shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", result.stdout)
        assert "snap plan rollback" in shown


def test_what_looks_like_a_macro_is_text():
    script = maker()

    assert script.text_line(script.escaped(".snapignore")) == "\\&.snapignore"
    assert script.text_line(script.escaped("'a\\b-c'")) == "\\(aqa\\eb\\-c\\(aq"
