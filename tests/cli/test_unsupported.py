"""On a system where treesnap cannot work, it says so in one line, and what does work."""

from __future__ import annotations

import subprocess
import sys

import pytest

import treesnap

START = "import treesnap.cli.start; treesnap.cli.start.main()"
PROGRAMS = {
    "command": (START, 2),
    "hook": (f"sys.argv[1:] = ['hook', 'claude']; {START}", 1),
    "library": ("import treesnap; treesnap.open", 1),
    "notebook": ("import treesnap.notebook", 1),
}
"""With their exit codes: hosts of agents take 2 of a hook for a refusal of what they do."""


@pytest.mark.parametrize(("program", "code"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize(
    ("platform", "name"),
    [
        ("win32", "Windows"),
        ("darwin", "macOS"),
        ("cygwin", "Cygwin"),
        ("freebsd14", "FreeBSD"),
        ("haiku1", "haiku1"),
    ],
)
def test_elsewhere_it_says_in_one_line_where_it_runs(program, code, platform, name, monkeypatch):
    """shutil is there before: from Python 3.12 on it needs what Python has on Windows."""
    monkeypatch.delenv("SNAP_UNPROVEN_SYSTEM", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", f"import shutil, sys; sys.platform = {platform!r}; {program}"],
        capture_output=True,
        text=True,
        check=False,
    )

    last = done.stderr.splitlines()[-1]
    assert done.returncode == code
    assert last.removeprefix("ImportError: ") == (
        f"treesnap {treesnap.__version__} runs on Linux, also in WSL on Windows, and not on "
        f"{name} yet"
    )
    assert ("Traceback" in done.stderr) == last.startswith("ImportError: ")


def test_here_it_runs():
    assert treesnap.unsupported() is None
