"""What four tools bring back: the table of README.md, by experiment.

Every row is one experiment: a fresh directory, a checkpoint, damage, the way
back, a look. Run it with the tools to compare:

    python benchmarks/what_comes_back.py [git-stash restic shadow-git treesnap]

It prints a table in Markdown. A tool that is not installed is left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MANY_FILES = 2000
KILL_ATTEMPTS = 5


class Tool:
    """One way to take a checkpoint and to go back to it."""

    name = ""
    program = "git"
    repository_needed = False

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.root.mkdir()
        self.home = place / "home"
        self.home.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@example.org",
            "RESTIC_REPOSITORY": str(self.home / "restic"),
            "RESTIC_PASSWORD": "x",
            "SNAP_STORE": str(self.home / "store"),
        }

    def run(self, command: str) -> None:
        """Runs a shell command in the root and lets it fail loudly."""
        subprocess.run(
            ["sh", "-euc", command],
            cwd=self.root,
            env=self.environment,
            check=True,
            capture_output=True,
        )

    prepare = "true"
    checkpoint = "true"
    back = "true"
    after_kill = "true"
    take_back = "false"
    """How the way back itself is undone, where the tool has such a thing."""
    take_out = "false"
    """How the last but one checkpoint is undone, and the last one kept."""
    copy = "false"
    """How a second directory, ``../copy``, is made of the checkpoint."""
    bring_back = "false"
    """How what was done in ``../copy`` comes into the root."""
    archive = "false"
    """How the checkpoint is written to ``../archive.tar``."""


class GitStash(Tool):
    name = "git stash"
    repository_needed = True
    prepare = "git init -q . && git commit -q --allow-empty -m start"
    checkpoint = "git stash push -q --all && git stash apply -q"
    back = "git reset -q --hard && git clean -fdxq && git stash apply -q"
    archive = "git archive -o ../archive.tar stash@{0}"


class Restic(Tool):
    name = "restic"
    program = "restic"
    prepare = "restic init -q"
    # Backed up by a relative path and restored to ".": never outside the directory.
    checkpoint = "restic backup -q ."
    back = "restic restore -q latest --target ."
    copy = "restic restore -q latest --target ../copy"
    archive = "restic dump latest / >../archive.tar"


class ShadowGit(Tool):
    name = "shadow git"
    git = 'git --git-dir="$HOME/shadow" --work-tree=.'
    prepare = f"{git} init -q"
    checkpoint = f"{git} add -A && {git} commit -q --allow-empty -m checkpoint"
    back = f"{git} reset -q --hard HEAD && {git} clean -fdq"
    after_kill = 'rm -f "$HOME/shadow/index.lock"'
    take_out = f"{git} revert --no-edit HEAD~1"
    copy = f"{git} worktree add -q -b copy ../copy"
    bring_back = (
        "(cd ../copy && git add -A && git commit -q -m copy)"
        f" && {git} add -A && {git} commit -q -m here && {git} merge -q --no-edit copy"
    )
    archive = f"{git} archive -o ../archive.tar HEAD"


class Treesnap(Tool):
    name = "treesnap"
    program = "snap"
    checkpoint = "snap create -q"
    back = "snap restore -q latest"
    after_kill = "snap status -q"
    take_back = "snap undo -q"
    take_out = "snap revert -q latest~1"
    copy = "snap fork -q latest ../copy"
    bring_back = "snap adopt -q ../copy"
    archive = "snap archive -q latest -o ../archive.tar"


TOOLS: list[type[Tool]] = [GitStash, Restic, ShadowGit, Treesnap]


def round_trip(tool: Tool, make: str, damage: str) -> None:
    """Makes a directory, takes a checkpoint, does damage, goes back."""
    tool.run(tool.prepare)
    tool.run(make)
    tool.run(tool.checkpoint)
    tool.run(damage)
    tool.run(tool.back)


def works_without_repository(tool: Tool) -> bool:
    if tool.repository_needed:
        tool.prepare = "true"
    try:
        round_trip(tool, "echo a >a", "rm -f a")
    except subprocess.CalledProcessError:
        return False
    return (tool.root / "a").is_file()


def ignored_files(tool: Tool) -> bool:
    round_trip(tool, "echo '*.db' >.gitignore; echo a >x.db", "rm -f x.db")
    return (tool.root / "x.db").is_file()


def empty_directories(tool: Tool) -> bool:
    round_trip(tool, "mkdir -p a/b; echo a >c", "rm -rf a")
    return (tool.root / "a/b").is_dir()


def permission_bits(tool: Tool) -> bool:
    round_trip(tool, "echo a >a; chmod 640 a", "rm -f a")
    return (tool.root / "a").stat().st_mode & 0o7777 == 0o640


def modification_times(tool: Tool) -> bool:
    round_trip(tool, "echo a >a; touch -d '2020-02-02 02:02:02.123456789' a", "rm -f a")
    return (tool.root / "a").stat().st_mtime_ns % 10**9 == 123456789


def extended_attributes(tool: Tool) -> bool:
    tool.run("echo a >a")
    os.setxattr(tool.root / "a", "user.note", b"kept")
    round_trip(tool, "true", "rm -f a")
    return "user.note" in os.listxattr(tool.root / "a")


def hard_links(tool: Tool) -> bool:
    round_trip(tool, "echo a >a; ln a b", "rm -f a b")
    return (tool.root / "a").samefile(tool.root / "b")


def nested_repository(tool: Tool) -> bool:
    make = "mkdir n; echo a >n/a; git init -q n; git -C n add a; git -C n commit -q -m one"
    round_trip(tool, make, "rm -rf n/.git")
    return (tool.root / "n/.git/HEAD").is_file()


def created_files_go(tool: Tool) -> bool:
    round_trip(tool, "echo a >a", "echo b >b")
    return not (tool.root / "b").exists()


def way_back_can_be_undone(tool: Tool) -> bool:
    round_trip(tool, "echo a >a", "echo newer >a")
    try:
        tool.run(tool.take_back)
    except subprocess.CalledProcessError:
        return False
    return (tool.root / "a").read_text() == "newer\n"


def killed_half_way(tool: Tool) -> bool:
    """Whether the tree is old or new after a kill in mid-restore and one more command."""
    tool.run(tool.prepare)
    tool.run(f"for i in $(seq {MANY_FILES}); do echo old >$i; done")
    tool.run(tool.checkpoint)
    for attempt in range(KILL_ATTEMPTS):
        tool.run(f"for i in $(seq {MANY_FILES}); do echo newer >$i; done")
        kill_at(tool, (attempt + 1) / (KILL_ATTEMPTS + 1))
        tool.run(tool.after_kill)
        if len({text_or_none(tool.root / str(i + 1)) for i in range(MANY_FILES)}) > 1:
            return False
        tool.run(tool.back)
    return True


def kill_at(tool: Tool, share: float) -> None:
    """Starts the way back and kills it when about that share of its work is done."""
    watched = tool.root / str(max(1, int(MANY_FILES * share)))
    process = subprocess.Popen(
        ["sh", "-euc", tool.back],
        cwd=tool.root,
        env=tool.environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and text_or_none(watched) == "newer\n":
        time.sleep(0.0002)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


LINES = "".join(f"{number}\n" for number in range(1, 10))


def takes_out(tool: Tool, later: str) -> bool:
    """Undoes a step that changed line 2 of a text, after ``later`` was done to it."""
    (tool.root / "a").write_text(LINES)
    tool.run(tool.prepare)
    for change in ("true", "sed -i s/2/two/ a", later):
        tool.run(change)
        tool.run(tool.checkpoint)
    try:
        tool.run(tool.take_out)
    except subprocess.CalledProcessError:
        return False
    return True


def a_step_in_the_middle(tool: Tool) -> bool:
    is_done = takes_out(tool, "sed -i s/8/eight/ a")
    return is_done and (tool.root / "a").read_text() == LINES.replace("8", "eight")


def conflict_changes_nothing(tool: Tool) -> bool:
    """Whether the tool can take steps out, and leaves all alone where it cannot."""
    if tool.take_out == Tool.take_out or takes_out(tool, "sed -i s/two/zwei/ a"):
        return False
    return (tool.root / "a").read_text() == LINES.replace("2", "zwei")


def a_copy_to_work_in(tool: Tool) -> bool:
    tool.run(tool.prepare)
    tool.run("echo '*.db' >.gitignore; echo a >x.db")
    tool.run(tool.checkpoint)
    try:
        tool.run(tool.copy)
    except subprocess.CalledProcessError:
        return False
    return (tool.root.parent / "copy/x.db").is_file()


def a_copy_comes_back(tool: Tool) -> bool:
    (tool.root / "a").write_text(LINES)
    tool.run(tool.prepare)
    tool.run(tool.checkpoint)
    try:
        tool.run(tool.copy)
        tool.run("sed -i s/8/eight/ a; sed -i s/2/two/ ../copy/a")
        tool.run(tool.bring_back)
    except subprocess.CalledProcessError:
        return False
    return (tool.root / "a").read_text() == LINES.replace("8", "eight").replace("2", "two")


def an_archive(tool: Tool) -> bool:
    tool.run(tool.prepare)
    tool.run("echo '*.db' >.gitignore; echo a >x.db")
    tool.run(tool.checkpoint)
    try:
        tool.run(f"{tool.archive} && tar -tf ../archive.tar | grep -q 'x.db$'")
    except subprocess.CalledProcessError:
        return False
    return True


def text_or_none(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


EXPERIMENTS: dict[str, Callable[[Tool], bool]] = {
    "works in a directory that is not a repository": works_without_repository,
    "brings back files that `.gitignore` names": ignored_files,
    "… empty directories": empty_directories,
    "… all permission bits (0640)": permission_bits,
    "… modification times, in nanoseconds": modification_times,
    "… extended attributes": extended_attributes,
    "… hard links as links": hard_links,
    "… the `.git` of a repository inside": nested_repository,
    "removes files created since": created_files_go,
    "going back can itself be undone": way_back_can_be_undone,
    "killed midway: old or new tree after the next command": killed_half_way,
    "undoes a step in the middle, and keeps later ones": a_step_in_the_middle,
    "… and leaves all alone where both changed the same": conflict_changes_nothing,
    "makes a copy to work in, with ignored files": a_copy_to_work_in,
    "merges what was done in a copy into the directory": a_copy_comes_back,
    "writes a tar archive, with ignored files": an_archive,
}


def outcome(tool_class: type[Tool], experiment: Callable[[Tool], bool]) -> str:
    """Returns the cell of one tool in one row."""
    with tempfile.TemporaryDirectory() as place:
        return "yes" if experiment(tool_class(Path(place))) else "no"


def table(tools: list[type[Tool]]) -> list[str]:
    """Returns the lines of the table in Markdown."""
    rows = ["| | " + " | ".join(tool.name for tool in tools) + " |"]
    rows.append("| --- |" + " --- |" * len(tools))
    for title, experiment in EXPERIMENTS.items():
        cells = " | ".join(outcome(tool, experiment) for tool in tools)
        rows.append(f"| {title} | {cells} |")
    return rows


def available(tool: type[Tool]) -> bool:
    """Returns whether the program of a tool can be run."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return shutil.which(tool.program, path=path) is not None


def main(names: list[str]) -> None:
    chosen = [
        tool
        for tool in TOOLS
        if available(tool) and (not names or tool.name.replace(" ", "-") in names)
    ]
    print("\n".join(table(chosen)))


if __name__ == "__main__":
    main(sys.argv[1:])
