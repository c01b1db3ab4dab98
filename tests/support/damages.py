"""What a failing step may leave behind: each a script that does damage, for every way back.

A script runs with the root as its current directory, and what runs it fails afterwards.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Damage:
    """One thing that a step may leave."""

    name: str
    script: str
    """For ``sh``."""
    loses_excluded: bool = False
    """Whether it removes what no snapshot holds."""
    mounts_at: str | None = None
    """Where in the root it mounts a file system, which every way back leaves alone."""


def build(root: Path) -> None:
    """Makes the tree in which the damage is done."""
    root.mkdir(exist_ok=True)
    (root / "directory/below").mkdir(parents=True)
    (root / "file").write_text("file")
    (root / "directory/inner").write_text("inner")
    (root / "directory/below/deep").write_text("deep")
    (root / "old.log").write_text("old")
    (root / "excluded").mkdir()
    (root / "excluded/kept").write_text("kept")
    (root / ".snapignore").write_text("/excluded/\n*.tmp\n")
    os.link(root / "file", root / "second-name")
    (root / "link").symlink_to("file")


DAMAGES = [
    Damage("content", "echo changed > file; echo more >> directory/inner"),
    Damage("removed", "rm -r file directory link"),
    Damage("everything removed", "rm -rf -- * ; rm -f old.log", loses_excluded=True),
    Damage("created", "mkdir -p a/b; echo x > a/b/c; ln -s nowhere a/dangling"),
    Damage("kinds swapped", "rm -r file directory; mkdir file; echo x > directory"),
    Damage("invalid pattern", "printf '[z-a]\\n!\\n\\\\\\n' > .snapignore; echo x > file"),
    Damage("invalid bytes", "printf '\\377\\376[\\n' > .snapignore; echo x > file"),
    Damage("pattern below", "printf '[z-a]\\n' > directory/.snapignore; echo x > file"),
    Damage(
        "exponential pattern",
        "echo " + "'" + "*a" * 40 + "b'" + " > .snapignore; touch " + "a" * 200,
    ),
    Damage("long rules", "head -c 3000000 /dev/zero | tr '\\0' a > .snapignore; echo x > new"),
    Damage("hides what it made", "echo '*' > .snapignore; echo x > made; mkdir d; echo x > d/e"),
    Damage("hides what it changed", "echo '*.log' >> .snapignore; echo new > old.log"),
    Damage("hides below", "echo '*' > directory/.snapignore; echo x > directory/inner"),
    Damage("ignore file that blocks", "rm .snapignore; mkfifo .snapignore; echo x > file"),
    Damage("ignore file that is a directory", "rm .snapignore; mkdir .snapignore; echo x > file"),
    Damage("rules removed", "rm .snapignore; echo x > file"),
    Damage("excluded in the way", "rm file; mkdir file; echo x > file/a.tmp"),
    Damage("old times", "touch -d 1901-01-01 file; touch -d 1960-01-01 directory"),
    Damage("time after nanoseconds in 64 bits", "touch -d 2262-04-12 file directory ."),
    Damage("far times", "touch -d 2400-01-01 file directory/below; echo x > directory/inner"),
    Damage("fifo", "rm file; mkfifo file; mkfifo directory/pipe"),
    Damage("socket", "python3 -c \"import socket; socket.socket(1).bind('socket')\"; rm socket"),
    Damage("no permissions", "chmod 0 file directory/inner directory/below directory"),
    Damage("read-only", "chmod 500 directory/below directory; echo x > file; chmod 400 file"),
    Damage("root without permissions", "echo x > file; chmod 0 ."),
    Damage("closed and created", "mkdir -p n/m; echo x > n/m/o; chmod 0 n/m/o n/m n"),
    Damage("linked to outside", "ln -f file ../outside; echo x > file"),
    Damage("deep", "i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done; echo x > f"),
    Damage("names that are not text", "touch \"$(printf 'a\\377\\nb')\""),
    Damage("root removed", 'rm -rf "$PWD"', loses_excluded=True),
    Damage("root is a file", 'd=$PWD; rm -rf "$d"; echo x > "$d"', loses_excluded=True),
    Damage(
        "root is a link",
        'd=$PWD; rm -rf "$d"; mkdir "$d.other"; ln -s "$d.other" "$d"',
        loses_excluded=True,
    ),
    Damage("root moved", 'd=$PWD; mv "$d" "$d.moved"', loses_excluded=True),
]

MOUNTING = [
    Damage(
        "nested mount",
        "mkdir mounted; mount -t tmpfs none mounted; echo x > mounted/within; rm file",
        mounts_at="mounted",
    ),
    Damage(
        "mount over a directory",
        "rm file; mount -t tmpfs none directory; echo x > directory/within",
        mounts_at="directory",
    ),
]
"""For the superuser alone."""

FILLING = [
    Damage("new file", "head -c 64M /dev/urandom > filling"),
    Damage("grown file", "head -c 64M /dev/urandom >> file"),
    Damage("replaced and filled", "rm -r directory large; head -c 64M /dev/urandom > directory"),
    Damage("emptied and filled", ": > large; head -c 64M /dev/urandom > filling"),
    Damage("hidden", "echo '*' > .snapignore; rm -r directory; head -c 64M /dev/urandom > filling"),
    Damage(
        "many files",
        "mkdir new; while head -c 9000 /dev/urandom > new/$((i=i+1)); do :; done; : > large",
    ),
    Damage(
        "excluded in the way",
        "rm large; mkdir large; head -c 64M /dev/urandom > large/a.tmp",
    ),
]
"""For a small file system: what fills it, so that hardly a byte can be written any more."""
LARGE_SIZE = 2 << 20
"""Bytes of a file in the tree, named ``large``, for which there is no room any more."""


def parameters(damages: list[Damage]) -> list[object]:
    """The damages for ``parametrize``."""
    return [
        pytest.param(
            item,
            id=item.name.replace(" ", "-"),
            marks=[pytest.mark.needs("any names")] if "\\377" in item.script else [],
        )
        for item in damages
    ]


ALL = parameters(DAMAGES)
