"""Large model files in treesnap, and in DVC: docs/benchmarks/models.md.

    python -m benchmarks.models [--files 6] [--size 1G] [--dvc PATH] [--directory DIR]

Makes files that look like weights of two bytes each: the low byte is random, the high byte has few
values. Both tools work on copies of the same files, one after the other in each step, with the
files in the page cache as far as they fit. DVC has its default settings, in a git repository, but
for its report of use. Needs room for five times the files. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.suite.machine import system_name
from treesnap.core.model.quantities import parse_size

SNAP = str(Path(sys.executable).with_name("snap"))
BLOCK_SIZE = 16 << 20
CHANGED_PART = 20
"""One block of so many changes in a file that was trained on."""
_HIGH_BYTES = bytes(0x30 + (number * number >> 12) + 0x80 * (number & 1) for number in range(256))


class Tool:
    """One way to keep versions: a place with the files in ``models``."""

    def __init__(self, title: str, place: Path, kept: Path) -> None:
        self.title = title
        self.place = place
        self.kept = kept
        """Where versions are kept."""

    def run(self, *words: str) -> None:
        """Runs a command in the place; raises CalledProcessError."""
        subprocess.run(words, cwd=self.place, check=True, stdout=subprocess.DEVNULL)

    def begin(self) -> None:
        """Prepares the place, with nothing kept yet."""

    def keep(self) -> None:
        """Keeps the files as they are now."""
        raise NotImplementedError

    def go_back(self) -> None:
        """Brings back the files as they were kept before the last time."""
        raise NotImplementedError


class Treesnap(Tool):
    """A store beside the place."""

    def keep(self) -> None:
        self.run(SNAP, "-q", "--store", str(self.kept), "create")

    def go_back(self) -> None:
        self.run(SNAP, "-q", "--store", str(self.kept), "restore", "latest~1")


class Dvc(Tool):
    """A git repository with DVC, as its guide says."""

    program = "dvc"

    def begin(self) -> None:
        self.run("git", "init", "-q")
        self.run("git", "config", "user.name", "benchmark")
        self.run("git", "config", "user.email", "benchmark@localhost")
        self.run(self.program, "init", "-q")
        self.run(self.program, "config", "-q", "core.analytics", "false")
        self.run("git", "commit", "-qm", "begin")

    def keep(self) -> None:
        self.run(self.program, "add", "-q", "models")
        self.run("git", "add", "-A")
        self.run("git", "commit", "-q", "--allow-empty", "-m", "models")

    def go_back(self) -> None:
        self.run("git", "checkout", "-q", "HEAD~1")
        self.run(self.program, "checkout", "-q")


def weights(size: int) -> bytes:
    """Returns bytes like those of weights."""
    data = bytearray(os.urandom(size))
    data[1::2] = data[1::2].translate(_HIGH_BYTES)
    return bytes(data)


def write_model(path: Path, size: int) -> None:
    """Writes a file of weights."""
    with path.open("wb") as file:
        for _ in range(size // BLOCK_SIZE):
            file.write(weights(BLOCK_SIZE))


def train(path: Path, size: int) -> None:
    """Changes some blocks of a file where they are."""
    with path.open("r+b") as file:
        for begin in range(0, size, BLOCK_SIZE * CHANGED_PART):
            file.seek(begin)
            file.write(weights(BLOCK_SIZE // 2))


def disk_bytes(place: Path) -> int:
    """Returns what a directory takes on the disk."""
    names = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(path.stat().st_blocks * 512 for path in names) if place.exists() else 0


def measured(call: Callable[[], None]) -> tuple[float, float]:
    """Returns wall time and processor time of the commands of a call, in seconds."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    call()
    wall_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def same(one: Path, other: Path) -> bool:
    """Returns whether two directories hold the same."""
    return subprocess.run(["diff", "-rq", one, other], check=False).returncode == 0


def main() -> None:
    """Prints what each step took."""
    parser = argparse.ArgumentParser(prog="models", description=__doc__)
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--size", type=parse_size, default=1 << 30)
    parser.add_argument("--dvc", default="dvc")
    parser.add_argument("--directory")
    options = parser.parse_args()
    Dvc.program = options.dvc
    with TemporaryDirectory(dir=options.directory) as directory:
        compare(Path(directory), options.files, options.size)


def compare(directory: Path, files: int, size: int) -> None:
    """Takes both tools through the same steps."""
    source = directory / "source"
    source.mkdir()
    for number in range(files):
        write_model(source / f"model-{number}.safetensors", size)
    tools = [
        Treesnap("treesnap", directory / "treesnap", directory / "store"),
        Dvc("DVC", directory / "dvc", directory / "dvc" / ".dvc" / "cache"),
    ]
    for tool in tools:
        tool.place.mkdir()
        shutil.copytree(source, tool.place / "models")
        tool.begin()

    def change(name: str) -> None:
        """Makes the next change in the source, and the same one in all places."""
        first, last = "model-0.safetensors", f"model-{files - 1}.safetensors"
        if name == "trained":
            train(source / first, size)
            for tool in tools:
                shutil.copyfile(source / first, tool.place / "models" / first)
        elif name == "renamed":
            for place in (source, *(tool.place / "models" for tool in tools)):
                (place / last).rename(place / "best.safetensors")
        elif name == "added":
            write_model(source / "new.safetensors", size)
            for tool in tools:
                shutil.copyfile(source / "new.safetensors", tool.place / "models/new.safetensors")

    version = subprocess.run([Dvc.program, "--version"], capture_output=True, check=True)
    total = files * size / 1e9
    print(
        f"{files} files, {total:.1f} GB; DVC {version.stdout.decode().strip()}; {system_name()}\n"
    )
    print("| | tool | s | processor, s | MB more on the disk |\n| --- | --- | ---: | ---: | ---: |")
    steps = {
        "first": "kept for the first time",
        "same": "nothing has changed",
        "trained": f"a {CHANGED_PART * 2}th of one file has changed",
        "renamed": "one file has another name",
        "added": "one file is new",
        "back": "back to before the new file",
    }
    for name, title in steps.items():
        change(name)
        for tool in tools:
            before = disk_bytes(tool.kept)
            wall_s, used_s = measured(tool.go_back if name == "back" else tool.keep)
            more = (disk_bytes(tool.kept) - before) / 1e6
            print(
                f"| {title} | {tool.title} | {wall_s:.1f} | {used_s:.1f} | {more:,.0f} |",
                flush=True,
            )
    (source / "new.safetensors").unlink()
    for tool in tools:
        assert same(source, tool.place / "models"), tool.title


if __name__ == "__main__":
    main()
