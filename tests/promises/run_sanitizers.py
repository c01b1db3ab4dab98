"""Runs tests on the module in C as the address and undefined-behaviour sanitizers compile it.

``tox -e sanitizers`` runs it, as ``python -m promises.run_sanitizers`` with the paths that it
needs. The tests are the module's own and those that capture and restore trees through it; other
tests may be named, and ``TREESNAP_TEST_SIZE=full`` in the environment tries more. What a sanitizer
finds ends the process, so that the run ends with 1. Leaks are not looked for: the interpreter
itself has them. Needs gcc.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from promises.run_promises import PROJECT, copied

FLAGS = ("-O1", "-g", "-fPIC", "-shared", "-pthread", "-fno-omit-frame-pointer")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TESTS = (
    "tests/core/unit/worktree/test_native.py",
    "tests/core/unit/codec/test_tree.py",
    "tests/core/create",
    "tests/core/stateful",
)


def compile_into(sources: Path) -> None:
    """Compiles the module with the sanitizers beside the sources of a copy."""
    package = sources / "treesnap" / "core"
    for old in package.glob("_native*.so"):
        old.unlink()
    include = f"-I{sysconfig.get_path('include')}"
    target = package / "_native.abi3.so"
    source = PROJECT / "native" / "_native.c"
    subprocess.run(
        ["gcc", *FLAGS, *SANITIZERS, include, str(source), "-o", str(target)], check=True
    )


def library(name: str) -> str:
    """Returns the path of a library of the compiler."""
    words = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tests; returns their exit code."""
    parser = argparse.ArgumentParser(prog="run_sanitizers", description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS, metavar="TEST")
    tests = parser.parse_args(arguments).tests
    with copied(None) as (sources, scratch):
        compile_into(sources)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")]),
            "PYTHONMALLOC": "malloc",  # a byte behind an object of Python is then not its own
            "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "TREESNAP_TEST_LOT": "all",
            "TMPDIR": str(scratch),
        }
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*words, *tests], cwd=PROJECT, env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
