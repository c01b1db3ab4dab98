"""A person at a terminal, for what hosts do there alone: types, presses keys, reads the screen.

Run as a program beside the host: ``terminal.py STEPS``, a JSON list. A step is one of
``{"start": words}``, ``{"wait": pattern}``, ``{"gone": pattern}``, ``{"type": text}``,
``{"keys": names}`` in the words of tmux. With ``"until": pattern`` it is done again until that is
on the screen.
Exits 1 where what a step waits for does not come, and says what is on the screen instead.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

SCRIPT = Path(sys.argv[-1])
SOCKET = f"test-{zlib.crc32(bytes(SCRIPT)):08x}"  # other terminals are in the same directory
TMUX = ("tmux", "-L", SOCKET, "-f", "/dev/null")
PAUSE_S = 0.4
"""Between two keys: an escape that another key follows at once is another key."""
REPEATED_MAX = 10
REPEAT_S = 3
WAIT_S = 60


def tmux(*words: str) -> str:
    return subprocess.run([*TMUX, *words], capture_output=True, text=True, check=False).stdout


def screen() -> str:
    return tmux("capture-pane", "-p", "-t", "host")


def shows(pattern: str, seconds: float, *, is_there: bool = True) -> bool:
    """Returns whether the screen shows something within a time, or no longer does."""
    deadline = time.monotonic() + seconds
    while (re.search(pattern, screen(), re.MULTILINE) is None) == is_there:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait(pattern: str, *, is_there: bool = True) -> None:
    if not shows(pattern, WAIT_S, is_there=is_there):
        sys.exit(f"{pattern!r}:\n{screen()}")


def carry_out(step: dict[str, Any]) -> None:
    """Does one step; one with ``until`` again, until the screen shows what it waits for."""
    if "wait" in step or "gone" in step:
        wait(step.get("wait", step.get("gone")), is_there="wait" in step)
    for _ in range(REPEATED_MAX):
        act(step)
        if "until" not in step or shows(step["until"], REPEAT_S):
            return
    sys.exit(f"{step['until']!r}:\n{screen()}")


def act(step: dict[str, Any]) -> None:
    if "start" in step:
        size = ("-x", "120", "-y", "50")
        tmux("new-session", "-d", *size, "-s", "host", *step["start"])
    if "type" in step:
        tmux("send-keys", "-t", "host", "-l", step["type"])
        time.sleep(PAUSE_S)
    for name in step.get("keys", ()):
        tmux("send-keys", "-t", "host", name)
        time.sleep(PAUSE_S)


def main() -> None:
    for step in json.loads(SCRIPT.read_text()):
        carry_out(step)


if __name__ == "__main__":
    try:
        main()
    finally:
        tmux("kill-server")
