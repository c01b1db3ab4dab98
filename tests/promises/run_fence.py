"""Breaks each rule of the fence on purpose, and says what finds it: model, matrix, orders, soak.

``tox -e fence`` runs it, as ``python -m promises.run_fence`` with the paths that it needs. The
model has to find each broken rule among its own steps, and something that runs the product has to
find it in a copy of the sources. Ends with 1 when something that the table names does not notice.
``--only`` takes the name of a rule, ``--by`` what is tried, and the matrix tries every place.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from promises.fence_mutations import BROKEN, MATRIX, Broken
from promises.mutations import Mutation
from promises.run_promises import PROJECT, copied, kill_group, noticed, outcome

COLUMNS = ("model", "matrix", "orders", "soak")
MODEL = "core/stateful/test_fence_model.py::test_a_broken_rule_is_found"
STEP = 81
"""The matrix tries one place of a pair out of so many; so many seeds try them all."""
ROUNDS = 40
"""Of each writer: a minute on two cores with nothing else to do."""
SOAKS_MAX = 5
"""What meets in a soak is chance, so others follow one that finds nothing."""
SOAK_MAX_S = 1800
"""After this long a soak is stuck, which is a sign that something is broken."""


def is_in_model(rule: str) -> bool:
    """Returns whether the model finds a rule that is broken in it."""
    with copied(None) as (sources, scratch):
        return outcome(f"{MODEL}[{rule}]", sources, scratch)[0] == "passes"


def is_soaked(mutation: Mutation, rounds: int, seed: int) -> bool:
    """Returns whether a soak finds anything in a copy with a mutation."""
    with copied(mutation) as (sources, scratch):
        path = [str(sources), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(scratch)}
        words = ["--seed", f"{seed}", "--rounds", f"{rounds}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "soak.run_soak", *words],
            cwd=PROJECT,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # what an actor started ends with it
        )
        try:
            said = process.communicate(timeout=SOAK_MAX_S)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            return True
        finally:
            kill_group(process)
    lines = [line for line in said.splitlines() if line.startswith("PROBLEM")]
    print(f"{'':12}{lines[0][:160] if lines else said[-300:].strip()}", flush=True)
    return bool(lines)


def named(broken: Broken) -> set[str]:
    """Returns what the table says finds a broken rule."""
    found = {"model", "matrix" * bool(broken.matrix), "orders" * bool(broken.orders)}
    return (found | {"soak" * broken.is_soaked}) - {""}


def in_full(seed: int) -> dict[str, str]:
    """Returns the variables of a test that tries all that there is, as far as a seed says."""
    return {"TREESNAP_TEST_SIZE": "full", "TREESNAP_TEST_SEED": f"{seed}"}


def is_noticed(test: str, mutation: Mutation, variables: Mapping[str, str]) -> bool:
    """Returns whether a test fails on a mutation, and passes without it."""
    found, failed = noticed(test, mutation, variables)
    print(f"{'':12}{found} {failed or test}", flush=True)
    return found == "fails"


def found_by(broken: Broken, wanted: set[str], rounds: int) -> dict[str, bool]:
    """Returns what was tried on a broken rule, and whether it was found."""
    tried = {}
    if "model" in wanted:
        tried["model"] = is_in_model(broken.rule)
    matrix = f"{MATRIX}{broken.matrix}" if broken.matrix else None
    if matrix and "matrix" in wanted:
        seeds = (in_full(number) for number in range(STEP))
        tried["matrix"] = any(is_noticed(matrix, broken.mutation, seed) for seed in seeds)
    if broken.orders and "orders" in wanted:
        tried["orders"] = is_noticed(broken.orders, broken.mutation, in_full(0))
    if "soak" in wanted:
        soaks = (is_soaked(broken.mutation, rounds, seed) for seed in range(1, SOAKS_MAX + 1))
        tried["soak"] = any(soaks)
    return tried


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each rule; returns the exit code."""
    parser = argparse.ArgumentParser(prog="run_fence", description=__doc__)
    parser.add_argument("--only", metavar="RULE")
    parser.add_argument("--by", nargs="+", choices=COLUMNS, help="try these, named or not")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each writer of a soak")
    options = parser.parse_args(arguments)
    wrong = count = 0
    print(f"{'rule':13} {' '.join(f'{name:7}' for name in COLUMNS)}", flush=True)
    for broken in BROKEN:
        if options.only not in (None, broken.rule):
            continue
        tried = found_by(broken, set(options.by or named(broken)), options.rounds)
        words = {True: "finds", False: "MISSES", None: "-"}
        row = " ".join(f"{words[tried.get(name)]:7}" for name in COLUMNS)
        print(f"{broken.rule:13} {row}", flush=True)
        wrong += any(not found for what, found in tried.items() if what in named(broken))
        count += 1
    print(f"{count} broken rules, {wrong} not found as the table says", flush=True)
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
