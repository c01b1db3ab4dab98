"""The command line as a process of its own, and what it leaves lying around."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Place:
    """A root and its store."""

    root: Path
    store: Path

    def make(self, *paths: str) -> None:
        """Makes files that hold their own path, and the directories above them."""
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(path)

    def edit(self, *paths: str) -> None:
        """Changes files."""
        for path in paths:
            (self.root / path).write_text(f"{path}, edited")

    def snap(self, *words: str, by: Sequence[str] = ()) -> Ended:
        """Runs a command on the root; ``by`` is the command that runs it."""
        program = [sys.executable, "-m", "treesnap", "-C", str(self.root)]
        done = subprocess.run(
            [*by, *program, *words],
            env={**os.environ, "SNAP_STORE": str(self.store)},
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def done(self, *words: str) -> None:
        """Runs a command that must succeed."""
        ended = self.snap(*words)
        assert ended.code == 0, ended

    def litter(self) -> list[str]:
        """Returns what an operation may leave only while it runs."""
        patterns = ("roots/*/journal", "roots/*/export-*", "temporary/*", "pending/*")
        found = [str(path) for pattern in patterns for path in self.store.glob(pattern)]
        return found + [str(path) for path in self.root.parent.rglob(".treesnap*")]
