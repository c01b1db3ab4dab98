"""The benchmark suite: what it says of given numbers, and that it measures at all.

Expected ratios and verdicts are worked out here by hand, not by the suite.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from benchmarks.suite import peers, promises, report
from benchmarks.suite.edits import ChangedFiles, ChangedRow
from benchmarks.suite.peers import Tool
from benchmarks.suite.process import CommandFailed, environment_of, timed
from benchmarks.suite.promises import State
from benchmarks.suite.results import Case, Results
from benchmarks.suite.trees import make_database, make_files, measure
from benchmarks.suite.works import Clock, Comparison, Contender

PROJECT = Path(__file__).parents[2]
MIB = 1 << 20
CLICK = ("", "python -c 'import click'", "floor", "seconds")
SOURCE = "source"
WATCH = "treesnap, watch"

# Work and limit of each promise; what is measured; what it is measured against.
MANY = "files-1000000"
PROMISED = [
    ("status of 1,000 small files, processor time", 14,
     [("files-1000", "status", "treesnap", "cpu_seconds")],
     ("files-1000", "status", "git", "cpu_seconds")),
    ("status of 1,000 small files, processor time", 4,
     [("files-1000", "status", "treesnap, fork server", "cpu_seconds")],
     ("files-1000", "status", "git", "cpu_seconds")),
    ("status of 10,000 small files, processor time", 3.4,
     [("files-10000", "status", "treesnap", "cpu_seconds")],
     ("files-10000", "status", "git", "cpu_seconds")),
    ("in-process `create` of 1,000 files, one changed", 0.010,
     [("files-1000", "create in one process, 1 file changed", "library", "seconds")], None),
    ("first snapshot, processor time", 1.3, [(SOURCE, "first snapshot", "treesnap", "cpu_seconds")],
     (SOURCE, "first snapshot", "tar | zstd", "cpu_seconds")),
    ("first snapshot", 1.35, [(SOURCE, "first snapshot", "treesnap", "seconds")],
     (SOURCE, "first snapshot", "tar | zstd", "seconds")),
    ("first snapshot", 0.45, [(SOURCE, "first snapshot", "treesnap", "seconds")],
     (SOURCE, "first snapshot", "restic", "seconds")),
    ("first snapshot", 0.18, [(SOURCE, "first snapshot", "treesnap", "seconds")],
     (SOURCE, "first snapshot", "git", "seconds")),
    ("first snapshot of 1,000,000 small files, processor time", 2.6,
     [(MANY, "first snapshot", "treesnap", "cpu_seconds")],
     (MANY, "first snapshot", "tar | zstd", "cpu_seconds")),
    ("store size", 0.9, [(SOURCE, "first snapshot", "treesnap", "store_bytes")],
     (SOURCE, "first snapshot", "restic", "store_bytes")),
    ("snapshot, nothing changed, processor time", 1.25,
     [(SOURCE, "nothing changed", "treesnap", "cpu_seconds")],
     (SOURCE, "nothing changed", "git", "cpu_seconds")),
    ("snapshot, nothing changed", 1, [(SOURCE, "nothing changed", "treesnap", "seconds")],
     (SOURCE, "nothing changed", "git", "seconds")),
    ("snapshot, nothing changed", 3, [(SOURCE, "nothing changed", WATCH, "seconds")], CLICK),
    ("snapshot, 10 files changed", 1.44, [(SOURCE, "10 files changed", "treesnap", "seconds")],
     (SOURCE, "10 files changed", "git", "seconds")),
    ("snapshot, 10 files changed", 3.6, [(SOURCE, "10 files changed", WATCH, "seconds")], CLICK),
    ("status, processor time", 3.2, [(SOURCE, "status", "treesnap", "cpu_seconds")],
     (SOURCE, "status", "git", "cpu_seconds")),
    ("status, processor time", 0.3, [(SOURCE, "status", "treesnap, fork server", "cpu_seconds")],
     (SOURCE, "status", "git", "cpu_seconds")),
    ("roll those 10 back, processor time", 2,
     [(SOURCE, "roll back, 10 files changed", "treesnap", "cpu_seconds")],
     (SOURCE, "roll back, 10 files changed", "git", "cpu_seconds")),
    ("roll those 10 back, processor time", 0.5,
     [(SOURCE, "roll back, 10 files changed", WATCH, "cpu_seconds")],
     (SOURCE, "roll back, 10 files changed", "git", "cpu_seconds")),
    ("roll those 10 back", 1.5, [(SOURCE, "roll back, 10 files changed", "treesnap", "seconds")],
     (SOURCE, "roll back, 10 files changed", "git", "seconds")),
    ("roll those 10 back", 4, [(SOURCE, "roll back, 10 files changed", WATCH, "seconds")], CLICK),
    ("roll 1,000 files back", 1.1,
     [(SOURCE, "roll back, 1,000 files changed", "treesnap", "seconds")],
     (SOURCE, "roll back, 1,000 files changed", "git", "seconds")),
    ("roll 1,000 files back", 0.9, [(SOURCE, "roll back, 1,000 files changed", WATCH, "seconds")],
     (SOURCE, "roll back, 1,000 files changed", "git", "seconds")),
    ("restore all into an empty directory, processor time", 1.8,
     [(SOURCE, "restore all", "treesnap", "cpu_seconds")],
     (SOURCE, "restore all", "tar | zstd", "cpu_seconds")),
    ("restore all into an empty directory", 1, [(SOURCE, "restore all", "treesnap", "seconds")],
     (SOURCE, "restore all", "tar | zstd", "seconds")),
    ("new bytes for an unchanged tree", 4096,
     [(SOURCE, "nothing changed", "treesnap", "added_bytes")], None),
    ("new bytes for 10 changed files", 120_000,
     [(SOURCE, "10 files changed", "treesnap", "added_bytes")], None),
    ("4 KiB edit inside a 1 GiB file", 524_288,
     [("database", "4 KiB edit", "treesnap", "added_bytes")], None),
    ("in-process `create` with watch, one file changed", 0.006,
     [(SOURCE, "create in one process, 1 file changed", "library, watch", "seconds")], None),
    ("peak memory of snapshots and roll backs of 1,000,000 files", 209_715_200,
     [(MANY, work, "treesnap", "memory_bytes")
      for work in ("first snapshot", "nothing changed", "10 files changed",
                   "roll back, 10 files changed")], None),
    ("peak memory of restoring 1,000,000 files", 209_715_200,
     [(MANY, "restore all", "treesnap", "memory_bytes")], None),
    ("peak memory of collecting garbage beside 1,000,000 files", 209_715_200,
     [(MANY, "collect garbage", "treesnap", "memory_bytes")], None),
    ("`snap create -q` of 10 files, processor time", 1.2,
     [("", "snap create -q, 10 files", "treesnap", "cpu_seconds")], (*CLICK[:3], "cpu_seconds")),
    ("`snap create -q` of 10 files, processor time", 0.5,
     [("", "snap create -q, 10 files", "treesnap, fork server", "cpu_seconds")],
     (*CLICK[:3], "cpu_seconds")),
    ("`snap --version`", 1.2, [("", "snap --version", "treesnap", "seconds")], CLICK),
    ("`snap list`", 1.6, [("", "snap list", "treesnap", "seconds")], CLICK),
]  # fmt: skip


def results_with(*samples) -> Results:
    """Returns results that hold the given cases, each with its values."""
    facts = {
        "cores": 2, "memory_gib": 8, "file_system": "ext4", "system": "Debian", "commit": "abc",
        "python": "CPython 3.11", "load_at_start": 0.1, "source": "a source",
        "versions": {"git": "2.39"},
    }  # fmt: skip
    results = Results(facts=facts)
    for case, *values in samples:
        for value in values:
            results.add(Case(*case), value)
    return results


@pytest.mark.parametrize(
    ("promise", "expected"), list(zip(promises.PROMISES, PROMISED, strict=False))
)
def test_a_promise_is_met_up_to_its_limit_and_not_above(promise, expected):
    work, limit, measured, against = expected
    assert promise.work == work

    for factor, state in ((0.5, State.MET), (0.999, State.MET), (1.001, State.MISSED)):
        value = limit * factor * (7 if against else 1)
        samples = [(case, value) for case in measured]
        verdict = promises.verdict_of(
            promise, results_with(*samples, *([(against, 7.0)] if against else []))
        )

        assert verdict.state is state
        assert verdict.excess == pytest.approx(factor)
        assert verdict.number == pytest.approx(limit * factor)


@pytest.mark.parametrize("promise", promises.PROMISES, ids=lambda promise: promise.words)
def test_a_promise_is_not_judged_before_all_it_needs_is_measured(promise):
    needed = [*promise.cases, *([promise.against] if promise.against else [])]
    for absent in needed:
        results = results_with(*((case, 1.0) for case in needed if case != absent))

        assert promises.verdict_of(promise, results).state is State.NOT_MEASURED


@pytest.mark.parametrize(("floor", "is_said"), [(1.0, False), (5.0, True)])
def test_a_promise_below_what_everybody_has_to_do_says_so(floor, is_said):
    restic = next(promise for promise in promises.PROMISES if "restic" in promise.words)
    verdict = promises.verdict_of(
        restic,
        results_with(
            (restic.cases[0], 7.2),
            ((SOURCE, "first snapshot", "restic"), 10.0),
            ((SOURCE, "read, hash, compress", "floor"), floor),
        ),
    )

    words = report.verdict_words(verdict)

    assert verdict.floor == floor / 10
    assert words.startswith("**missed** by 60 %")
    assert ("the floor is 0.50 ×" in words) == is_said


def test_the_largest_of_several_bounds_is_what_counts():
    memory = next(promise for promise in promises.PROMISES if "memory" in promise.work)
    values = dict(zip(memory.cases, (100e6, 100e6, 1.25 * 209_715_200, 100e6), strict=True))

    verdict = promises.verdict_of(memory, results_with(*values.items()))

    assert verdict.state is State.MISSED
    assert verdict.excess == pytest.approx(1.25)


def test_sizes_are_compared_with_each_other():
    same = next(promise for promise in promises.PROMISES if promise.form is promises.Form.SPREAD)
    assert same.limit == 1.3

    values = dict(zip(same.cases, (0.20, 0.25, 0.30), strict=True))

    assert promises.verdict_of(same, results_with(*values.items())).number == pytest.approx(1.5)


def test_the_page_has_every_promise_with_the_median_and_the_verdict():
    case = Case(SOURCE, "first snapshot", "treesnap")
    page = report.page(
        results_with(
            (case, 9.0, 100.0, 6.0),
            ((SOURCE, "first snapshot", "git"), 40.0),
            ((SOURCE, "first snapshot", "tar | zstd"), 3.0),
        )
    )

    rows = [row for row in page.splitlines() if row.startswith("| ")]
    for work, *_ in PROMISED:
        assert any(row.startswith(f"| {work} |") for row in rows), work
    assert len(promises.PROMISES) == len(PROMISED) + 2
    assert (
        "| first snapshot | ≤ 0.18 × git | 9.00 s against 40.0 s: 0.23 × | **missed** by 25 % |"
        in rows
    )
    assert any(
        "9.00 s against 3.00 s: 3.00 × | **missed**, 2.2 × the limit |" in row for row in rows
    )
    assert "| first snapshot | ≤ 0.45 × restic |  | not measured |" in rows
    assert "2 missed, 36 not measured" in page


def test_the_page_names_every_number_in_which_a_peer_is_better():
    results = results_with(
        ((SOURCE, "nothing changed", "treesnap"), 0.9),
        ((SOURCE, "nothing changed", "git"), 0.6),
        ((SOURCE, "nothing changed", "restic"), 8.0),
        ((SOURCE, "nothing changed", WATCH), 0.1),
        ((SOURCE, "walk, compiled", "floor"), 0.2),
        (("venv", "first snapshot", "treesnap", "store_bytes"), 30e6),
        (("venv", "first snapshot", "borg", "store_bytes"), 20e6),
    )

    better = [(found.tree, found.tool, found.quantity) for found in report.better_peers(results)]
    page = report.page(results)

    assert better == [(SOURCE, "git", "seconds"), ("venv", "borg", "store_bytes")]
    assert "| source | nothing changed | time | 900 ms | git 600 ms (1.5 ×) |" in page
    assert "| venv | first snapshot | store | 30.0 MB | borg 20.0 MB (1.5 ×) |" in page


def test_the_page_begins_with_the_headline_and_marks_the_best_of_each_row():
    page = report.page(
        results_with(
            ((SOURCE, "nothing changed", "treesnap"), 0.9),
            ((SOURCE, "nothing changed", "git"), 0.6),
            ((SOURCE, "first snapshot", "restic", "store_bytes"), 20e6),
        ),
        [("headline.svg", "Headline"), ("sizes.svg", "Sizes")],
    )

    lines = [line for line in page.splitlines() if line]
    assert lines[:3] == [
        "# Benchmarks",
        "![Headline](headline.svg)",
        "| task | treesnap | treesnap, watch | git | restic | borg | rsync | tar \\| zstd |",
    ]
    assert len(lines[4:10]) == sum(line.startswith("| ") for line in lines[4:11])
    assert lines[5] == "| snapshot, nothing changed | 900 ms |  | **600 ms** |  |  |  |  |"
    assert lines[9] == "| size of the store |  |  |  | **20.0 MB** |  |  |  |"
    assert page.index("## Promises") < page.index("![Sizes](sizes.svg)")


def test_numbers_come_back_from_their_file():
    results = results_with(((SOURCE, "nothing changed", "git"), 0.5, 0.25))
    results.trees[SOURCE] = {"files": 3, "directories": 1, "size_bytes": 10}
    results.checkpoints["git"] = [{"number": 1, "seconds": 0.5}]
    results.leave_out("borg: not installed.")

    assert Results.from_json(results.to_json()) == results
    assert json.loads(results.to_json())["cases"][0]["median"] == 0.375


def test_a_run_completes_another_where_that_has_no_numbers():
    results = results_with(((SOURCE, "nothing changed", "git"), 0.5))
    results.leave_out(f"{SOURCE}: snap watch: no time was left.")
    results.leave_out("venv: no time was left.")
    other = results_with(
        ((SOURCE, "nothing changed", "git"), 9.0), ((SOURCE, "nothing changed", "treesnap"), 0.25)
    )
    other.trees[SOURCE] = {"files": 3, "directories": 1, "size_bytes": 10}
    other.checkpoints["treesnap"] = [{"number": 1}]
    other.leave_out(f"{SOURCE}: nothing changed, git: no time was left.")
    other.leave_out(f"{SOURCE}: borg: not installed.")

    results.complete_with(other)

    assert sorted(results.samples.values()) == [[0.25], [0.5]]
    assert results.left_out == ["venv: no time was left.", f"{SOURCE}: borg: not installed."]
    assert results.checkpoints == other.checkpoints
    assert results.trees == other.trees


def test_edits_change_what_they_say_and_are_undone(tmp_path):
    files, database = tmp_path / "files", tmp_path / "database"
    for directory in (files, database):
        directory.mkdir()
    make_files(files, 250)
    make_database(database, 1)
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    assert len(before) == len(set(before.values())) == 250

    edit, row = ChangedFiles(files, 10), ChangedRow(database)
    for number in (1, 2):
        edit.apply(number)
        row.apply(number)
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert len(changed) == 10
    assert not edit.is_undone()
    assert not row.is_undone()
    edit.take_back()
    row.take_back()

    assert all(path.read_bytes() == content for path, content in before.items())
    assert edit.is_undone()
    assert row.is_undone()
    assert measure(database)["files"] == 1


def test_a_failing_tool_and_a_wrong_result_are_named_and_stop_no_other(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    make_files(root, 30)
    environment = environment_of(tmp_path / "home")
    copy = "mkdir {store} && cp -a . {store}/{now}"
    tools = [
        Tool("fails", (), "", "", "true", first="exit 3", again="true"),
        Tool("forgets", (), "", "", "true", copy, again="true", back="true", restore="mkdir {out}"),
        Tool("copies", (), "", "", "true", copy, again="true", back="cp -a {store}/0/. .",
             restore="cp -a {store}/0 {out}"),
    ]  # fmt: skip
    contenders = [Contender(tool, tmp_path / tool.name, environment) for tool in tools]
    results = results_with()
    clock = Clock(time.monotonic() + 600, repeat_s=100)

    Comparison("files-30", root, ChangedFiles(root, 10), contenders, results, clock).run(2)

    assert [sentence.split(" after ")[0] for sentence in results.left_out] == [
        "files-30: first snapshot, fails: failed, exit code 3",
        "files-30: restore all, forgets: the content was not what it should be.",
        "files-30: roll back, 10 files changed, forgets: the content was not what it should be.",
    ]
    assert len(results.samples[Case("files-30", "roll back, 10 files changed", "copies")]) == 2
    assert measure(root)["size_bytes"] == measure(tmp_path / "copies" / "store" / "0")["size_bytes"]


def test_a_way_back_leads_to_the_tree_before_the_change_also_when_time_is_short(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    make_files(root, 30)
    copy = "mkdir -p {store} && cp -a . {store}/{now}"
    tool = Tool("copies", (), "", "", "true", copy, again=copy, back="cp -a {store}/{before}/. .")
    contenders = [Contender(tool, tmp_path / "copies", environment_of(tmp_path / "home"))]
    results = results_with()
    clock = Clock(time.monotonic() + 600, repeat_s=1e-9)

    for count in (30, 29):  # as the series of more and more changes does
        edit = ChangedFiles(root, count)
        works = peers.WORKS if count == 30 else (peers.SAME, peers.CHANGED, peers.BACK)
        Comparison("files-30", root, edit, contenders, results, clock, works).run(2)

    assert results.left_out == []
    for name, times in (("first snapshot", 1), ("nothing changed", 2), ("30 files changed", 1)):
        assert len(results.samples[Case("files-30", name, "copies")]) == times
    assert len(results.samples[Case("files-30", "roll back, 29 files changed", "copies")]) == 1


def test_memory_of_a_command_is_its_own(tmp_path):
    ballast = bytearray(200 * MIB)
    small = timed("true", tmp_path, os.environ)
    large = timed(f"{sys.executable} -c 'bytearray(100 << 20)' | cat", tmp_path, os.environ)

    assert small.memory_bytes < 50 * MIB < 100 * MIB <= large.memory_bytes < len(ballast)
    with pytest.raises(CommandFailed, match="exit code 4"):
        timed("(exit 4) | cat", tmp_path, os.environ)


@pytest.mark.slow
def test_the_suite_measures_tiny_trees(tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.suite", "--trees", "files-60"]
    options = ["--tools", "treesnap,git", "--rounds", "1", "--work", work, "--out", out]
    done = subprocess.run(
        [*command, *options], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    written = (out / "results.json").read_text(encoding="utf-8")
    page = (out / "index.md").read_text(encoding="utf-8")
    results = Results.from_json(written)
    works = [peers.FIRST, peers.SAME, "10 files changed", "roll back, 10 files changed"]
    for tool in ("treesnap", "git"):
        for name in [*works, peers.RESTORE]:
            assert results.median(Case("files-60", name, tool)) > 0, name
        assert results.median(Case("files-60", "first snapshot", tool, "store_bytes")) > 0
    for walk in ("walk, Python", "read, hash, compress"):
        assert results.median(Case("files-60", walk, "floor")) > 0
    assert results.trees["files-60"] == measure(work / "trees" / "files-60")
    assert "source: not chosen." in results.left_out
    assert not [sentence for sentence in results.left_out if "failed" in sentence]
    for text in (written, page):
        assert str(tmp_path) not in text
        assert socket.gethostname() not in text
    assert page.count("\n## ") >= 6


def test_nothing_has_changed_since_the_capture_before_in_every_round(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    make_files(root, 30)
    listing = "mkdir -p {store} && find . -type f -printf '%P %s %T@\\n' | sort > {store}/{now}"
    again = f"{listing}; ! cmp -s {{store}}/{{before}} {{store}}/{{now}} || echo >> {{store}}/same"
    tool = Tool("lists", (), "", "", "true", listing, again=again)
    contender = Contender(tool, tmp_path / "lists", environment_of(tmp_path / "home"))
    works = (peers.FIRST, peers.SAME, peers.CHANGED)
    clock = Clock(time.monotonic() + 600, repeat_s=1e-9)

    for count in (5, 10):
        edit = ChangedFiles(root, count)
        Comparison("t", root, edit, [contender], Results(), clock, works).run(1)
        works = (peers.SAME, peers.CHANGED)

    assert (contender.store / "same").read_text() == "\n\n"
    assert contender.captures == 5


def test_each_number_of_the_readme_has_a_script():
    """Those in its blocks are typed by ``test_pages``; the tables are printed by their script."""
    page = (PROJECT / "docs" / "benchmarks" / "index.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| roll those 10 files back"))
    measured_s = int(row.split("|")[2].removesuffix(" ms ")) / 1000
    facts = json.loads((PROJECT / "benchmarks" / "results.json").read_text())["facts"]
    git, restic = (facts["versions"][name].rpartition(".")[0] for name in ("git", "restic"))
    system = facts["system"].replace(" GNU/Linux", "")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|^\|.*?$|\]\([^)]*\)", "", readme, flags=re.DOTALL | re.MULTILINE)

    for sentence in (
        f"Python {project['requires-python'].removeprefix('>=')} or later",
        f"Rolling back 10 files of the Linux source takes {measured_s:.1f} s",
        f"git {git}, restic {restic} ({system})",
        "restic 0.17 added `restore --delete`",  # what its authors say
        "apt install python3-venv",
        f"[{project['license']}",
    ):
        assert sentence in prose
        prose = prose.replace(sentence, "")
    assert re.findall(r"\d+", prose) == []
    assert "`tox -e bench`" in readme
