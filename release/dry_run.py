"""Builds what a release uploads, twice, and tries it as a user of each Python would.

    python release/dry_run.py [--python python3.11 python3.12 ...] [--directory DIR]

Needs git, a compiler, and a network for pip. Builds from the newest commit alone: the sdist, the
wheel with the module in C (needs ``TREESNAP_NATIVE=require`` to succeed) and the pure wheel. Both
builds have to have the same bytes. Then checks their metadata, and for each Python installs the
wheels and the sdist, each in an environment of its own, and runs the example of the README with
it. Prints a line for each step; ends with 1 at the first that fails. Uploads nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def run(*words: str | Path, directory: Path, **variables: str) -> str:
    """Runs a command and returns what it prints; ends this program where it fails."""
    taken_over = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [str(word) for word in words],
        cwd=directory,
        env=taken_over | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{result.stdout}failed: {result.returncode}")
    return result.stdout


def environment(python: str, place: Path, *packages: str | Path) -> Path:
    """Makes a virtual environment with packages, and returns its programs."""
    run(python, "-m", "venv", place, directory=place.parent)
    pip = place / "bin" / "pip"
    run(pip, "install", "-q", "-U", "pip", directory=place.parent)
    run(pip, "install", "-q", *packages, directory=place.parent)
    return place / "bin"


def built(place: Path, python: Path, commit: str) -> dict[str, str]:
    """Builds all files of a release from a commit; returns their names and checksums."""
    sources, made = place / "sources", place / "dist"
    sources.mkdir(parents=True)
    archive = place / "sources.tar"
    run("git", "archive", "-o", archive, commit, directory=PROJECT)
    with tarfile.open(archive) as opened:
        opened.extractall(sources, filter="data")
    seconds = run("git", "log", "-1", "--format=%ct", commit, directory=PROJECT).strip()
    for kind, native in (("--sdist", "no"), ("--wheel", "require"), ("--wheel", "no")):
        run(
            *(python, "-m", "build", "-q", kind, "--outdir", made, sources),
            directory=place,
            SOURCE_DATE_EPOCH=seconds,
            TREESNAP_NATIVE=native,
        )
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(made.iterdir())
    }


def try_file(path: Path, python: str, place: Path, example: Path) -> str:
    """Installs one file for a Python, restores the README's sample with it; returns its version."""
    programs = environment(python, place, path)
    search_path = f"{programs}:{os.environ['PATH']}"
    run("sh", example, directory=place, PATH=search_path)
    return ", ".join(run(programs / "snap", "--version", "-v", directory=place).splitlines())


def main() -> None:
    """Builds, compares and tries."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--directory", type=Path, help="where to work, and to leave the files")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="release-", dir=options.directory))
    tools = environment(sys.executable, place / "tools", "build", "twine")
    commit = run("git", "rev-parse", "HEAD", directory=PROJECT).strip()  # it may move meanwhile
    print(f"commit {commit}", flush=True)
    first, second = (built(place / name, tools / "python", commit) for name in ("first", "second"))
    for name, checksum in first.items():
        print(f"{checksum}  {name}", flush=True)
    if first != second:
        sys.exit(f"a second build has other bytes: {second}")
    print("a second build has the same bytes")
    made = place / "first" / "dist"
    example = place / "first" / "sources" / "examples" / "first_restore.sh"
    run(tools / "twine", "check", "--strict", *sorted(made.iterdir()), directory=place)
    print("twine check: passed")
    for python in options.python:
        for path in sorted(made.iterdir()):
            tried = place / "tried"
            said = try_file(path, python, tried, example)
            shutil.rmtree(tried)
            print(f"{Path(python).name}, {path.name}: restored the sample; {said}", flush=True)


if __name__ == "__main__":
    main()
