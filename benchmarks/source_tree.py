"""Captures, checks, changes and restores a source tree, beside the tools people use.

    python benchmarks/source_tree.py [--tree DIR] [--work DIR] [--rounds 3] [--json OUT]

The tree is copied and never changed. Without ``--tree`` it is the Linux source
that Debian's package linux-source-6.1 installs: 78,635 files, 1.3 GB. Before each
work, everything that was written is synced, so that nobody pays for the copying.
All programs run as whole processes in one run, round by round in turn, and the medians and
their ratios are printed as a Markdown table. Tools that are not installed are
left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

WORKS = ("first snapshot", "nothing changed", "10 files changed", "roll those back", "restore all")


@dataclass
class Tool:
    """One program, with a command line for each work; shell text, run in the tree's copy."""

    name: str
    program: str
    setup: str
    commands: dict[str, str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    store_bytes: list[int] = field(default_factory=list)


def tools(work: Path) -> list[Tool]:
    """Returns the programs to compare; ``work`` is where their stores go."""
    git = f"git --git-dir={work}/git --work-tree=."
    restic = f"restic -q -r {work}/restic"
    return [
        Tool(
            "treesnap",
            "snap",
            "true",
            {
                "first snapshot": f"snap -q --store {work}/treesnap create",
                "nothing changed": f"snap -q --store {work}/treesnap create",
                "10 files changed": f"snap -q --store {work}/treesnap create",
                "roll those back": f"snap -q --store {work}/treesnap restore latest~1",
                "restore all": f"snap -q --store {work}/treesnap restore latest~1 --to {work}/out",
            },
        ),
        Tool(
            "git, shadow repository",
            "git",
            f"git init -q --bare {work}/git && git --git-dir={work}/git config core.bare false",
            {
                "first snapshot": f"{git} add -A -f && {git} commit -q -m a",
                "nothing changed": f"{git} add -A -f && {git} commit -q --allow-empty -m b",
                "10 files changed": f"{git} add -A -f && {git} commit -q -m c",
                "roll those back": f"{git} reset -q --hard HEAD~1",
                "restore all": f"mkdir {work}/out && git --git-dir={work}/git"
                f" --work-tree={work}/out checkout -q -f HEAD -- .",
            },
        ),
        Tool(
            "restic",
            "restic",
            f"{restic} init",
            {
                "first snapshot": f"{restic} backup .",
                "nothing changed": f"{restic} backup .",
                "10 files changed": f"{restic} backup .",
                "restore all": f"{restic} restore latest --target {work}/out",
            },
        ),
        Tool(
            "tar | zstd -1",
            "zstd",
            "true",
            {
                "first snapshot": f"tar cf - . | zstd -q -1 -T2 -o {work}/a.zst",
                "restore all": f"mkdir {work}/out && zstd -q -dc {work}/a.zst"
                f" | tar xf - -C {work}/out",
            },
        ),
    ]


def timed(command: str, tree: Path, environment: dict[str, str]) -> float:
    """Runs a command line in the tree; returns its wall time in seconds."""
    os.sync()
    begin = time.perf_counter()
    subprocess.run(command, shell=True, cwd=tree, env=environment, check=True)
    return time.perf_counter() - begin


def change(tree: Path, seed: int) -> None:
    """Appends a line to ten files."""
    files = sorted(path for path in tree.rglob("*.c") if path.is_file())
    for path in random.Random(seed).sample(files, 10):
        with path.open("a") as file:
            file.write(f"/* {seed} */\n")


def store_size(work: Path) -> int:
    """Returns the bytes of all files that a tool keeps."""
    return sum(
        os.lstat(os.path.join(directory, name)).st_size
        for directory, _, names in os.walk(work)
        for name in names
    )


def run_tool(tool: Tool, original: Path, work: Path, seed: int) -> None:
    """Does all works with one tool, once, and notes the times."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tree = work.parent / "tree"
    subprocess.run(["rsync", "-a", "--delete", f"{original}/", f"{tree}/"], check=True)
    environment = {
        **os.environ,
        "RESTIC_PASSWORD": "benchmark",
        "RESTIC_CACHE_DIR": str(work / "cache"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    timed(tool.setup, tree, environment)
    subprocess.run(
        "cat $(find . -type f | head -1) >/dev/null; tar cf - . | cat >/dev/null",
        shell=True,
        cwd=tree,
        check=True,
    )
    for name in WORKS:
        if name not in tool.commands:
            continue
        if name == "10 files changed":
            change(tree, seed)
        tool.seconds.setdefault(name, []).append(timed(tool.commands[name], tree, environment))
        if name == "first snapshot":
            tool.store_bytes.append(store_size(work))
    shutil.rmtree(work / "out", ignore_errors=True)


def debian_source(work: Path) -> Path:
    """Returns the unpacked Linux source of Debian's package."""
    archive = Path("/usr/src/linux-source-6.1.tar.xz")
    if not archive.exists():
        sys.exit("name a tree with --tree, or install Debian's package linux-source-6.1")
    tree = work / "linux-source-6.1"
    if not tree.exists():
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "xf", archive, "-C", work], check=True)
    return tree


def walk_floor(tree: Path) -> float:
    """Returns the seconds that looking at every file once takes in Python."""
    begin = time.perf_counter()
    pending = [str(tree)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return time.perf_counter() - begin


def table(found: list[Tool], floor: float) -> str:
    """Returns the medians in seconds, and each as a ratio to treesnap's."""
    own = {name: statistics.median(values) for name, values in found[0].seconds.items()}
    lines = ["| work | " + " | ".join(tool.name for tool in found) + " |"]
    lines.append("|---" * (len(found) + 1) + "|")
    for name in WORKS:
        cells = []
        for tool in found:
            if name not in tool.seconds:
                cells.append("")
                continue
            median = statistics.median(tool.seconds[name])
            cells.append(f"{median:.2f} s ({median / own[name]:.1f} x)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sizes = [f"{statistics.median(tool.store_bytes) / 1e6:.0f} MB" for tool in found]
    lines.append("| store after the first | " + " | ".join(sizes) + " |")
    lines.append(f"\nLooking at every file once, in Python: {floor:.2f} s.")
    return "\n".join(lines)


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    original = (arguments.tree or debian_source(arguments.work)).absolute()
    work = (arguments.work / "store").absolute()
    candidates = tools(work)
    found = [tool for tool in candidates if shutil.which(tool.program)]
    for tool in candidates:
        if not shutil.which(tool.program):
            print(f"{tool.program} is not installed and left out", file=sys.stderr)
    for seed in range(arguments.rounds):
        for tool in found:
            run_tool(tool, original, work, seed)
            print(f"round {seed + 1}: {tool.name}", file=sys.stderr)
    floor = statistics.median(walk_floor(original) for _ in range(3))
    if arguments.json:
        data = {
            tool.name: {"seconds": tool.seconds, "store_bytes": tool.store_bytes} for tool in found
        }
        arguments.json.write_text(json.dumps({"tools": data, "walk_floor_s": floor}, indent=2))
    print(table(found, floor))


if __name__ == "__main__":
    main()
