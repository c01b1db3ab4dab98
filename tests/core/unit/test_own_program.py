"""The words by which other processes start this program."""

from __future__ import annotations

import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from treesnap.core.own_program import module_words, program_words, python_words

SCRIPT = b"#!/usr/bin/python3\nfrom treesnap.cli.start import main\nmain()\n"


@pytest.fixture
def usr(tmp_path, monkeypatch):
    """A system whose interpreter has another ``snap`` beside it, and treesnap without a record."""
    usr = tmp_path / "usr"
    packaged = usr / "lib/python3/dist-packages/treesnap-1.dist-info"
    for directory in (usr / "bin", packaged):
        directory.mkdir(parents=True)
    (packaged / "METADATA").write_text("Metadata-Version: 2.1\nName: treesnap\nVersion: 1\n")
    make_program(usr / "bin/snap", b"#!/bin/sh\necho this is snapd\n")
    monkeypatch.syspath_prepend(str(packaged.parent))
    monkeypatch.setattr(sys, "argv", ["/somewhere/treesnap/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(usr / "bin/python3"))
    return usr


def make_program(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)


def record(usr: Path, *lines: str) -> None:
    """Says what an installer put where, and with which content."""
    (usr / "lib/python3/dist-packages/treesnap-1.dist-info/RECORD").write_text("\n".join(lines))


def digest(content: bytes) -> str:
    return f"sha256={urlsafe_b64encode(sha256(content).digest()).decode().rstrip('=')}"


@pytest.mark.parametrize("words", [module_words(), python_words("-c", "import treesnap, click")])
def test_nothing_of_the_directory_that_it_stands_in_is_run(tmp_path, words):
    for name in ("treesnap/__init__.py", "click.py", "platformdirs.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('the project was run')")

    done = subprocess.run([*words, "--version"], cwd=tmp_path, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_program_that_lies_beside_the_interpreter_may_be_another_one(usr):
    assert program_words() == [str(usr / "bin/python3"), "-P", "-m", "treesnap"]


def test_the_script_that_was_installed_is_called_wherever_it_is(usr):
    script = usr / "local/bin/snap"
    make_program(script, SCRIPT)
    record(usr, f"../../../local/bin/snap,{digest(SCRIPT)},{len(SCRIPT)}", "treesnap/cli/x.py,,")

    assert program_words() == [str(script)]


@pytest.mark.parametrize("how", ["replaced", "without a hash", "no program", "gone"])
def test_a_script_that_is_not_the_installed_one_is_not_called(usr, how):
    script = usr / "local/bin/snap"
    make_program(script, b"#!/bin/sh\n" if how == "replaced" else SCRIPT)
    record(usr, f"../../../local/bin/snap,{'' if how == 'without a hash' else digest(SCRIPT)},")
    if how == "no program":
        script.chmod(0o644)
    elif how == "gone":
        script.unlink()

    assert program_words() == module_words()


def test_a_process_that_a_script_started_names_that_one(usr, monkeypatch, tmp_path):
    (tmp_path / "home/bin").mkdir(parents=True)
    link = tmp_path / "home/bin/treesnap"
    make_program(tmp_path / "venv/bin/treesnap", SCRIPT)
    link.symlink_to(tmp_path / "venv/bin/treesnap")
    monkeypatch.setattr(sys, "argv", [str(link)])

    assert program_words() == [str(link)]


def test_a_name_alone_is_not_looked_up_on_the_path(usr, monkeypatch):
    monkeypatch.setenv("PATH", str(usr / "bin"))
    monkeypatch.setattr(sys, "argv", ["snap"])

    assert program_words() == module_words()
