"""What a terminal receives from a command."""

import os
import pty
import subprocess
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

END = b"\x04\x04the command has ended\x04\x04"


def shown_on_a_terminal(
    command: Iterable[str | os.PathLike[str]],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stderr: int | None = None,
    answers: Iterable[str] = (),
    prompt: bytes = b"?] ",
    code: int = 0,
    timeout_s: float = 60,
) -> bytes:
    """Runs a command on a terminal of its own; returns all that the terminal received.

    Each answer is typed where a prompt is shown. The command must end with the exit code, having
    asked for all of them.

    The end is marked by a text of ours, written once the command has ended. To read until no
    process has the terminal would lose what was written last now and then: the kernel looks for
    text, then for whether the other end was closed, and both may come between the two looks.
    """
    leader, follower = pty.openpty()
    received, left = b"", list(answers)
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(env),
            stdin=follower,
            stdout=follower,
            stderr=follower if stderr is None else stderr,
            start_new_session=True,
        )

        def mark_the_end() -> None:
            try:
                process.wait(timeout_s)
            finally:
                os.write(follower, END)

        ending = threading.Thread(target=mark_the_end)
        ending.start()
        while END not in received:
            received += os.read(leader, 65_536)
            if left and received.endswith(prompt):
                os.write(leader, left.pop(0).encode() + b"\n")
        ending.join()
        assert process.wait(0) == code, received
        assert not left, received
    finally:
        os.close(leader)
        os.close(follower)
    return received.removesuffix(END)
