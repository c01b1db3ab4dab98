"""Breaks each promise on purpose, in a copy of the sources, and runs the tests that prove it.

``tox -e promises`` runs it, as ``python -m promises.run_promises`` with the paths that it needs.
Ends with 1 when a test passes although the promise that it is named for is broken: then its row in
``docs/reference/promises.md`` promises more than its tests prove. Where the sample of a test does
not notice, other seeds are tried of what is drawn by chance, and else the test is run in full.
``--only`` takes the words of a mutation, of a test or of a promise, and repeats what they name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from promises.mutations import MUTATIONS, Mutation

PROJECT = Path(__file__).parents[2]
SOURCES = PROJECT / "src"
TIME_LIMIT_S = 240
"""For one file of tests; one that hangs does not say what is wrong, so it proves nothing."""
TIME_LIMIT_IN_FULL_S = 1200
SEEDS = 20
"""So many samples of what is drawn by chance take less time than one test in full."""
NOTHING: Mapping[str, str] = MappingProxyType({})
IN_FULL: Mapping[str, str] = MappingProxyType({"TREESNAP_TEST_SIZE": "full"})
FAILED = 1
"""How pytest ends when a test failed, rather than that none could be run."""


@contextmanager
def copied(mutation: Mutation | None) -> Iterator[tuple[Path, Path]]:
    """Yields a copy of the sources with a mutation in it or none, and a directory for the tests."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="promises-", dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True
    ) as name:
        sources, scratch = Path(name, "src"), Path(name, "scratch")
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
        scratch.mkdir()
        if mutation is not None:
            path = sources / "treesnap" / mutation.source
            text = path.read_text(encoding="utf-8")
            for old, new in mutation.edits:
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        yield sources, scratch


def outcome(
    test: str, sources: Path, scratch: Path, variables: Mapping[str, str] = NOTHING, seed: int = 0
) -> tuple[str, str]:
    """Runs a file of tests on the copy; returns how it ends, and which test failed."""
    python_path = [str(sources), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = (
        os.environ
        | dict(variables)
        | {
            "PYTHONPATH": os.pathsep.join(python_path),
            "TREESNAP_TEST_LOT": "all",
            "TMPDIR": str(scratch),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        }
    )
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "--tb=line"]
    words += ["-p", "no:cacheprovider", f"--hypothesis-seed={seed}", f"tests/{test}"]
    with (scratch / "output").open("w+b") as output:
        process = subprocess.Popen(
            words,
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what a test started ends with it
        )
        try:
            code = process.wait(TIME_LIMIT_IN_FULL_S if variables else TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill_group(process)
        output.seek(0)
        said = output.read().decode("utf-8", "replace")
    if code is None:
        return "hangs", ""
    if code == FAILED:
        failed = re.search(r"^(?:FAILED|ERROR) [^:\n]*::(.+?)(?: - |$)", said, re.MULTILINE)
        return "fails", failed[1] if failed else ""
    if code != 0:
        print(said[-2000:], file=sys.stderr)
    return "passes" if code == 0 else f"ends with {code}", ""


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the processes of a test."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_by_chance(test: str) -> bool:
    """Tells whether a file of tests draws by chance what it tries."""
    text = (PROJECT / "tests" / test.partition("::")[0]).read_text(encoding="utf-8")
    return "from hypothesis" in text


def noticed(
    test: str, mutation: Mutation, variables: Mapping[str, str] = NOTHING, seed: int = 0
) -> tuple[str, str]:
    """Returns how a file of tests ends on a broken promise, and which test failed.

    The one that failed has to pass without the mutation, or it proves nothing.
    """
    with copied(mutation) as (sources, scratch):
        found, failed = outcome(test, sources, scratch, variables, seed)
    if failed:
        path = test.partition("::")[0]
        with copied(None) as (sources, scratch):
            without = outcome(f"{path}::{failed}", sources, scratch, variables, seed)
            if without[0] != "passes":
                return "fails without it", failed
    return found, failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each promise, test and mutation; returns the exit code."""
    parser = argparse.ArgumentParser(prog="run_promises", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS")
    only = parser.parse_args(arguments).only
    wrong = count = 0
    for mutation in MUTATIONS:
        chosen: dict[str, list[str]] = {}
        for promise, tests in mutation.tests.items():
            for test in tests:
                if only in (promise, "") or only in test or only in mutation.what:
                    chosen.setdefault(test, []).append(promise)
        for test, promises in chosen.items():
            begun = time.monotonic()
            found, failed = noticed(test, mutation)
            how = ""
            for seed in range(1, SEEDS) if is_by_chance(test) else ():
                if found == "passes":
                    (found, failed), how = noticed(test, mutation, seed=seed), f"with seed {seed}: "
            if found == "passes":
                (found, failed), how = noticed(test, mutation, IN_FULL), "in full: "
            count += 1
            wrong += found != "fails"
            seconds = time.monotonic() - begun
            names = ", ".join(promises)
            print(f"{names:4} {test:42} {found:6} {seconds:4.0f} s  {mutation.what}", flush=True)
            if failed:
                print(f"{'':61}{how}{failed}", flush=True)
    print(f"{count} runs of tests on broken promises, {wrong} did not notice", flush=True)
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
