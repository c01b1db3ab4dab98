"""This program: the words by which other processes start it, and what it is for in this process.

Children, hooks and timers start it.

Python puts the current directory first on its path for ``-m`` and ``-c``, and hooks run in a
project that may be a stranger's: a ``treesnap`` or ``click.py`` in it would be run. ``-P`` says no.
A program that is found by the name ``snap`` may be another one: there are several, and one of them
lies beside the interpreter of Ubuntu.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from importlib.metadata import PackagePath

is_own: bool = False
"""Whether nothing but our own commands runs in this process, and in those that are forked from it.

Then nothing in it takes record locks, and a capture need not ask for them at each file: 4 % of
the processor time of a first capture of small files.
"""
client_id: int = 0
"""The process whose command this one carries out, in a child of a fork server; else 0."""
NAMES = frozenset({"snap", "treesnap"})
"""What this program is called by."""
MAGIC = "%snap"
"""What it is called by in a notebook, in whose cells people type."""


def claim() -> None:
    """Says that nothing but our own commands runs here."""
    global is_own  # noqa: PLW0603 - this is about the process
    is_own = True


def stand_for(process_id: int) -> None:
    """Says that this process does what another one was started for."""
    global client_id  # noqa: PLW0603 - this is about the process
    client_id = process_id


def python_words(*words: str) -> list[str]:
    """Returns the words that run this interpreter, which imports nothing from where it stands."""
    return [sys.executable, "-P", *words]


def module_words() -> list[str]:
    """Returns the words that run this program as a module of this interpreter."""
    return python_words("-m", "treesnap")


def magic_words() -> list[str]:
    """Returns the words that run this program for a notebook: commands in its texts fit a cell."""
    start = "from treesnap.cli.start import main; main()"
    return python_words("-c", f"import sys; sys.argv[0] = {MAGIC!r}; {start}")


def start_in_background(
    words: list[str], stdin: int | None = None, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """Starts this program as a process that is detached from the terminal; raises OSError.

    Its standard streams lead nowhere, but for those that are given. A lock that is its standard
    input is held from its start to its end, however it ends.
    """
    import subprocess

    return subprocess.Popen(  # noqa: S603 - our own program, without a shell
        words,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.DEVNULL if stdout is None else stdout,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def program_words() -> list[str]:
    """Returns the words by which another program can call this one, wherever it does.

    They name the script that this process was started by, or else the one that was installed with
    this program. A link to it is not followed: that of pipx, uv or Homebrew stays where it is when
    its target moves in an upgrade.
    """
    given = sys.argv[0]
    if os.path.basename(given) in NAMES and os.sep in given and os.access(given, os.X_OK):
        return [os.path.abspath(given)]
    script = _installed_script()
    return [script] if script is not None else module_words()


def _installed_script() -> str | None:
    """Returns the script that was installed with this program, unless it was replaced.

    Its path and hash are in what the installer recorded; some distributions leave that out.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution("treesnap")
        recorded = {path.name: path for path in installed.files or () if path.name in NAMES}
    except (PackageNotFoundError, OSError, ValueError):
        return None
    for _, script in sorted(recorded.items()):
        path = os.path.normpath(str(script.locate()))
        if script.hash is not None and _digest(path, script) == script.hash.value:
            return path
    return None


def _digest(path: str, script: PackagePath) -> str | None:
    """Returns the hash of a program as installers record it, or None where there is none."""
    from base64 import urlsafe_b64encode
    from hashlib import sha256

    if not os.access(path, os.X_OK):
        return None
    try:
        return urlsafe_b64encode(sha256(script.read_binary()).digest()).rstrip(b"=").decode()
    except OSError:
        return None
