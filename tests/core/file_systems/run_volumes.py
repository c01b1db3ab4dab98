"""Crashes, power cuts and state machines on each volume that a Mac may have: ``tox -e mac``.

Each volume has a run of pytest of its own, with the plugin ``volumes``. Words are passed on to it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from libsystem import VOLUMES

FOLDERS = ("tests/core/crash", "tests/core/stateful", "--ignore=tests/core/crash/test_black_box.py")
"""All but the installed command, which takes itself for one on Linux."""


def main(words: list[str]) -> int:
    """Runs them; returns 1 if one failed."""
    failed = []
    for volume in VOLUMES:
        sys.stdout.write(f"On {volume}\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "pytest", "-p", "volumes", "-n", "2", *(words or FOLDERS)]
        done = subprocess.run(
            command, env={**os.environ, "TREESNAP_TEST_VOLUME": volume}, check=False
        )
        if done.returncode != 0:
            failed.append(volume)
    sys.stdout.write(f"Failed: {', '.join(failed) or 'none'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
