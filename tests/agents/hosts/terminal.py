"""A person at a terminal, for what hosts do there alone: types, presses keys, reads the screen.

Run as a program beside the host: ``terminal.py STEPS``, a JSON list. A step is one of
``{"start": words}``, ``{"wait": pattern}``, ``{"gone": pattern}``, ``{"type": text}``,
``{"keys": names}`` in the words of tmux, and ``{"press": name, "until": pattern}``.
Exits 1 where what a step waits for does not come, and says what is on the screen instead.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TMUX = ("tmux", "-L", "test", "-f", "/dev/null")
PAUSE_S = 0.4
"""Between two keys: an escape that another key follows at once is another key."""
PRESSED_MAX = 20
WAIT_S = 60


def tmux(*words: str) -> str:
    return subprocess.run([*TMUX, *words], capture_output=True, text=True, check=False).stdout


def screen() -> str:
    return tmux("capture-pane", "-p", "-t", "host")


def wait(pattern: str, *, is_there: bool = True) -> None:
    """Waits until the screen shows something, or no longer does."""
    deadline = time.monotonic() + WAIT_S
    while (re.search(pattern, screen(), re.MULTILINE) is None) == is_there:
        if time.monotonic() > deadline:
            sys.exit(f"{pattern!r}:\n{screen()}")
        time.sleep(0.1)


def press(*names: str) -> None:
    for name in names:
        tmux("send-keys", "-t", "host", name)
        time.sleep(PAUSE_S)


def carry_out(step: dict[str, Any]) -> None:
    """Does one step."""
    if "start" in step:
        size = ("-x", "120", "-y", "50")
        tmux("new-session", "-d", *size, "-s", "host", *step["start"])
    elif "wait" in step:
        wait(step["wait"])
    elif "gone" in step:
        wait(step["gone"], is_there=False)
    elif "type" in step:
        tmux("send-keys", "-t", "host", "-l", step["type"])
        time.sleep(PAUSE_S)
    elif "keys" in step:
        press(*step["keys"])
    for _ in range(PRESSED_MAX):
        if "until" not in step or re.search(step["until"], screen(), re.MULTILINE):
            return
        press(step["press"])
    sys.exit(f"{step['until']!r}:\n{screen()}")


def main() -> None:
    for step in json.loads(Path(sys.argv[1]).read_text()):
        carry_out(step)


if __name__ == "__main__":
    try:
        main()
    finally:
        tmux("kill-server")
