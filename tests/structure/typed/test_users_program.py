"""Type checkers understand the library in a user's program, and find the mistakes in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "users_program.py"
TIMEOUT_S = 300


@pytest.fixture
def program(tmp_path):
    """The program in a directory of its own, where no settings of ours hold."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.read_text())
    return path


def checked(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words, program.name],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_mypy_is_content(program):
    result = checked(program, "mypy", "--strict", "--cache-dir", str(program.parent / "cache"))

    assert (result.returncode, result.stdout) == (
        0,
        "Success: no issues found in 1 source file\n",
    )


def test_pyright_is_content(program):
    settings = program.parent / "pyrightconfig.json"
    settings.write_text(
        '{"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error",'
        ' "enableTypeIgnoreComments": false}'
    )

    result = checked(program, "basedpyright", "--pythonpath", sys.executable)

    assert result.returncode == 0, result.stdout
    assert "0 errors" in result.stdout
