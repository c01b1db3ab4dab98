"""Builds the Debian package of the committed files, for this machine's release of Debian.

    python packaging/build_debian.py [--directory DIR]

Needs ``debhelper dh-python python3-dev python3-pip python3-venv lintian``, a compiler, and a
network for pip: Debian lacks blake3, pyfastcdc and python-ulid, or has others in older versions
than treesnap needs, so their wheels are in the package, below ``/usr/lib/treesnap``. lintian's
errors and warnings end it with 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from email.utils import formatdate
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PYTHON = "/usr/bin/python3"
PEOPLE = "The treesnap developers <treesnap@users.noreply.github.com>"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # the Python of Debian, whatever else is installed


def run(*words: str, directory: Path, **variables: str) -> str:
    """Runs a command and returns what it prints; raises CalledProcessError where it fails."""
    taken_over = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**taken_over, "PATH": PATH, **variables}
    return subprocess.run(
        words, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def changelog(version: str, seconds: float) -> str:
    """Returns the one entry of a package: what is new is told by CHANGELOG.md."""
    version = version.replace(".dev", "~dev")
    return (
        f"treesnap ({version}) unstable; urgency=medium\n\n  * Release {version}.\n\n"
        f" -- {PEOPLE}  {formatdate(seconds)}\n"
    )


def build(place: Path) -> Path:
    """Builds in a directory, and returns the package."""
    sources = place / "sources"
    sources.mkdir()
    run("git", "archive", "-o", str(place / "sources.tar"), "HEAD", directory=PROJECT)
    with tarfile.open(place / "sources.tar") as opened:
        opened.extractall(sources, filter="data")
    debian = sources / "debian"
    (sources / "packaging/debian").rename(debian)
    run(PYTHON, "-m", "venv", str(place / "pip"), directory=place)
    pip = str(place / "pip/bin/pip")
    run(pip, "install", "-q", "-U", "pip", directory=place)
    wheels = str(debian / "wheels")
    run(pip, "wheel", "-q", "-w", wheels, ".", directory=sources, TREESNAP_NATIVE="require")
    version = next((debian / "wheels").glob("treesnap-*.whl")).name.split("-")[1]
    committed = run("git", "log", "-1", "--format=%ct", directory=PROJECT)
    (debian / "changelog").write_text(changelog(version, int(committed)))
    run("dpkg-buildpackage", "-b", "-us", "-uc", directory=sources)
    return next(place.glob("treesnap_*.deb"))


def main() -> int:
    """Builds, checks and names the package."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=None, help="where the package is left")
    options = parser.parse_args()
    place = options.directory or Path(tempfile.mkdtemp(prefix="treesnap-debian-"))
    place.mkdir(parents=True, exist_ok=True)
    package = build(place.absolute())
    run("lintian", "--fail-on", "error,warning", str(package), directory=place)
    print(package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
