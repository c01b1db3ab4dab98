"""The programs that are compared, each with a command line for every work that it can do.

Command lines are shell text, run in the tree. In them ``{store}`` is a directory of the tool's
own, ``{out}`` where to restore to, ``{now}`` the number of the newest capture of the tool, or
the one that is being made, and ``{before}`` the number of the one before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

FIRST = "first snapshot"
SAME = "nothing changed"
STATUS = "status"
CHANGED = "{edit}"
BACK = "roll back, {edit}"
RESTORE = "restore all"
COLLECT = "collect garbage"
WORKS = (FIRST, SAME, STATUS, RESTORE, CHANGED, BACK)
"""In the order in which they are done; ``{edit}`` stands for what a tree's edit is called."""


@dataclass(frozen=True)
class Tool:
    """One program, and how it does each work; works that it cannot do are missing."""

    name: str
    programs: tuple[str, ...]
    package: str
    version: str
    setup: str
    first: str
    again: str | None = None
    status: str | None = None
    back: str | None = None
    restore: str | None = None
    usage: str = ""

    def command(self, work: str) -> str | None:
        """Returns the command line for one of ``WORKS``."""
        captures = {FIRST: self.first, SAME: self.again, CHANGED: self.again}
        others = {STATUS: self.status, BACK: self.back, RESTORE: self.restore}
        return {**captures, **others}[work]


def snap_command() -> str:
    """Returns how the installed treesnap is called: its command, else its module."""
    installed = Path(sys.executable).with_name("snap")
    return str(installed) if os.access(installed, os.X_OK) else f"{sys.executable} -m treesnap"


def all_tools() -> list[Tool]:
    """Returns treesnap and its peers, whether they are installed or not."""
    return [_treesnap(), _git(), _restic(), BORG, TAR, TAR_SYNC, RSYNC]


def _treesnap() -> Tool:
    snap = f"{snap_command()} -q --store {{store}}"
    return Tool(
        name="treesnap",
        programs=(),
        package="treesnap",
        version=f"{snap_command()} --version",
        setup="true",
        first=f"{snap} create",
        again=f"{snap} create",
        status=f"{snap} status",
        back=f"{snap} restore latest~1",
        restore=f"{snap} restore latest --to {{out}}",
        usage="every work syncs; rolling back captures the state before first",
    )


def _git() -> Tool:
    git = "git --git-dir={store} --work-tree=."
    capture = f"{git} add -A -f && {git} commit -q --allow-empty -m {{now}}"
    return Tool(
        name="git",
        programs=("git",),
        package="git",
        version="git --version",
        setup="git init -q --bare {store} && git --git-dir={store} config core.bare false"
        " && git --git-dir={store} config gc.auto 0",
        first=capture,
        again=capture,
        status=f"{git} status --porcelain",
        back=f"{git} reset -q --hard HEAD~1",
        # with an index of its own: else the shadow's would describe the files in {out}
        restore="mkdir {out} && GIT_INDEX_FILE={out}.index git --git-dir={store}"
        " --work-tree={out} checkout -f HEAD -- . && rm {out}.index",
        usage="a shadow repository: `add -A -f` and `commit`, `reset --hard`; loses empty"
        " directories, modes and times; its own collection is off, as it would run beside the"
        " others",
    )


def _restic() -> Tool:
    restic = "restic -q -r {store}"
    return Tool(
        name="restic",
        programs=("restic",),
        package="restic",
        version="restic version",
        setup=f"{restic} init",
        first=f"{restic} backup .",
        again=f"{restic} backup .",
        restore=f"{restic} restore latest --target {{out}}",
        usage="`backup`, `restore`; encrypts, which cannot be turned off",
    )


BORG = Tool(
    name="borg",
    programs=("borg",),
    package="borgbackup",
    version="borg --version",
    setup="borg init -e none {store}",
    first="borg create {store}::{now} .",
    again="borg create {store}::{now} .",
    restore="mkdir {out} && cd {out} && borg extract {store}::{now}",
    usage="`create`, `extract`; not encrypted, its own default compression",
)

TAR = Tool(
    name="tar | zstd",
    programs=("tar", "zstd"),
    package="zstd",
    version="zstd --version",
    setup="mkdir {store}",
    first="tar cf - . | zstd -q -f -1 -T2 -o {store}/tree.zst",
    restore="mkdir {out} && zstd -q -dc {store}/tree.zst | tar xf - -C {out}",
    usage="`zstd -1 -T2`; keeps one state, syncs nothing",
)

TAR_SYNC = replace(
    TAR,
    name="tar + sync",
    version="tar --version",
    first=f"{TAR.first} && sync {{store}}/tree.zst",
    restore=f"{TAR.restore} && sync -f {{out}}",
    usage="the same, made durable at the end",
)

RSYNC = Tool(
    name="rsync",
    programs=("rsync",),
    package="rsync",
    version="rsync --version",
    setup="mkdir {store}",
    first="rsync -a ./ {store}/{now}/",
    again="rsync -a --link-dest=../{before}/ ./ {store}/{now}/",
    back="rsync -a --delete {store}/{before}/ ./",
    restore="rsync -a {store}/{now}/ {out}/",
    usage="`--link-dest`: one directory for each capture, unchanged files are hard links; syncs"
    " nothing",
)


def is_installed(tool: Tool) -> bool:
    """Returns whether all programs of a tool are there."""
    return all(shutil.which(program) for program in tool.programs)


def version_of(tool: Tool, environment: Mapping[str, str]) -> str:
    """Returns the first number with a dot in what a tool says of its version."""
    done = subprocess.run(
        tool.version, shell=True, env=environment, capture_output=True, text=True, check=False
    )
    words = (word.strip("v,()*") for word in done.stdout.split())
    return next((word for word in words if "." in word and word[0].isdigit()), "unknown")
