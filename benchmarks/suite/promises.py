"""What is promised of speed and size, and whether what was measured keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.suite import floors, peers, serving, trees, watching
from benchmarks.suite.results import ADDED, CPU, MEMORY, SECONDS, STORE, Case, Results

TEN = "10 files changed"
BACK = peers.BACK.format(edit=TEN)
ONE = "1 file changed"
MANY_BACK = peers.BACK.format(edit=f"{watching.MANY:,} files changed")
KIB = 1024
CHECKPOINT_TREE = "files-10000"
EARLY = "create, first checkpoints"
LATE = "create, last checkpoints"
SIZES = ("files-1000", trees.SOURCE, trees.MILLION)


class Form(Enum):
    """How a promise's number comes from medians."""

    RATIO = "ratio"
    """What is measured, divided by what it is measured against."""

    BOUND = "bound"
    """The largest of what is measured, as it is."""

    SPREAD = "spread"
    """The largest of what is measured, divided by the smallest."""


class State(Enum):
    """What became of a promise."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Promise:
    """One bound on one kind of work."""

    work: str
    words: str
    form: Form
    limit: float
    cases: tuple[Case, ...]
    against: Case | None = None
    floor: Case | None = None
    """Work that every tool has to do for this task."""


@dataclass(frozen=True)
class Verdict:
    """What was measured of one promise."""

    promise: Promise
    state: State
    number: float | None = None
    """In the promise's own unit, a ratio or bytes or seconds; None when not measured."""

    excess: float | None = None
    """The number divided by the limit: above 1 the promise is missed by this factor."""

    floor: float | None = None
    """What the number would be if nothing but the floor had been done; of ratios only."""


def verdict_of(promise: Promise, results: Results) -> Verdict:
    """Returns whether a promise is kept; every number that it needs must have been measured."""
    medians = [results.median(case) for case in promise.cases]
    values = [value for value in medians if value is not None]
    reference = results.median(promise.against) if promise.against else None
    if len(values) < len(medians) or (promise.against and reference is None):
        return Verdict(promise, State.NOT_MEASURED)
    number = max(values)
    if promise.form is Form.RATIO:
        assert reference is not None
        number /= reference
    elif promise.form is Form.SPREAD:
        number /= min(values)
    excess = number / promise.limit
    least = results.median(promise.floor) if promise.floor else None
    floor = least / reference if least is not None and reference else None
    return Verdict(promise, State.MET if excess <= 1 else State.MISSED, number, excess, floor)


def _ratio(
    work: str, words: str, limit: float, case: Case, against: Case, floor: Case | None = None
) -> Promise:
    return Promise(work, words, Form.RATIO, limit, (case,), against, floor)


def _source(work: str, tool: str, quantity: str = SECONDS) -> Case:
    return Case(trees.SOURCE, work, tool, quantity)


def _own(work: str, quantity: str = SECONDS) -> Case:
    return _source(work, "treesnap", quantity)


CLICK = Case("", floors.CLICK, floors.FLOOR)
START = Case("", floors.CREATE_FEW, "treesnap")
EVERYTHING = _source(floors.EVERYTHING, floors.FLOOR)

SMALL = (
    ("files-1000", "treesnap", "≤ 14 × git without help", 14),
    ("files-1000", serving.SERVER, "with `watch` and a fork server ≤ 4 × git without help", 4),
    (CHECKPOINT_TREE, "treesnap", "≤ 3.4 × git without help", 3.4),
)
"""How much a status of small trees may take: most people's trees are small."""

PROMISES = (
    *(
        _ratio(
            f"status of {trees.tree_named(tree).title}, processor time",
            words,
            limit,
            Case(tree, peers.STATUS, tool, CPU),
            Case(tree, peers.STATUS, "git", CPU),
        )
        for tree, tool, words, limit in SMALL
    ),
    Promise(
        "in-process `create` of 1,000 files, one changed",
        "≤ 10 ms median",
        Form.BOUND,
        0.010,
        (Case("files-1000", watching.IN_PROCESS, watching.LIBRARY),),
    ),
    _ratio(
        "first snapshot, processor time",
        "≤ 1.3 × `tar | zstd -1 -T2`",
        1.3,
        _own(peers.FIRST, CPU),
        _source(peers.FIRST, "tar | zstd", CPU),
    ),
    _ratio(
        "first snapshot",
        "≤ 1.35 × `tar | zstd -1 -T2`",
        1.35,
        _own(peers.FIRST),
        _source(peers.FIRST, "tar | zstd"),
        EVERYTHING,
    ),
    _ratio(
        "first snapshot",
        "≤ 0.45 × restic",
        0.45,
        _own(peers.FIRST),
        _source(peers.FIRST, "restic"),
        EVERYTHING,
    ),
    _ratio(
        "first snapshot",
        "≤ 0.18 × git",
        0.18,
        _own(peers.FIRST),
        _source(peers.FIRST, "git"),
        EVERYTHING,
    ),
    _ratio(
        "first snapshot of 1,000,000 small files, processor time",
        "≤ 2.6 × `tar | zstd -1 -T2`",
        2.6,
        Case(trees.MILLION, peers.FIRST, "treesnap", CPU),
        Case(trees.MILLION, peers.FIRST, "tar | zstd", CPU),
    ),
    _ratio(
        "store size",
        "≤ 0.9 × restic",
        0.9,
        _own(peers.FIRST, STORE),
        _source(peers.FIRST, "restic", STORE),
    ),
    _ratio(
        "snapshot, nothing changed, processor time",
        "≤ 1.25 × git without help",
        1.25,
        _own(peers.SAME, CPU),
        _source(peers.SAME, "git", CPU),
    ),
    _ratio(
        "snapshot, nothing changed",
        "≤ 1 × git without help",
        1,
        _own(peers.SAME),
        _source(peers.SAME, "git"),
    ),
    _ratio(
        "snapshot, nothing changed",
        "with `watch` ≤ 3 × `python -c 'import click'`",
        3,
        _source(peers.SAME, watching.WATCH),
        CLICK,
    ),
    _ratio(
        "snapshot, 10 files changed",
        "≤ 1.2 × git without help, + 20 %",
        1.44,
        _own(TEN),
        _source(TEN, "git"),
    ),
    _ratio(
        "snapshot, 10 files changed",
        "with `watch` ≤ 3 × `python -c 'import click'`, + 20 %",
        3.6,
        _source(TEN, watching.WATCH),
        CLICK,
    ),
    _ratio(
        "status, processor time",
        "≤ 3.2 × git without help",
        3.2,
        _own(peers.STATUS, CPU),
        _source(peers.STATUS, "git", CPU),
    ),
    _ratio(
        "status, processor time",
        "with `watch` and a fork server ≤ 0.3 × git without help",
        0.3,
        _source(peers.STATUS, serving.SERVER, CPU),
        _source(peers.STATUS, "git", CPU),
    ),
    _ratio(
        "roll those 10 back, processor time",
        "≤ 2 × git",
        2,
        _own(BACK, CPU),
        _source(BACK, "git", CPU),
    ),
    _ratio(
        "roll those 10 back, processor time",
        "with `watch` ≤ 0.5 × git",
        0.5,
        _source(BACK, watching.WATCH, CPU),
        _source(BACK, "git", CPU),
    ),
    _ratio(
        "roll those 10 back",
        "≤ 1.5 × git, with the safety snapshot and every sync",
        1.5,
        _own(BACK),
        _source(BACK, "git"),
    ),
    _ratio(
        "roll those 10 back",
        "with `watch` ≤ 4 × `python -c 'import click'`",
        4,
        _source(BACK, watching.WATCH),
        CLICK,
    ),
    _ratio(
        "roll 1,000 files back",
        "≤ 1.1 × git",
        1.1,
        _own(MANY_BACK),
        _source(MANY_BACK, "git"),
    ),
    _ratio(
        "roll 1,000 files back",
        "with `watch` ≤ 0.9 × git",
        0.9,
        _source(MANY_BACK, watching.WATCH),
        _source(MANY_BACK, "git"),
    ),
    _ratio(
        "restore all into an empty directory, processor time",
        "≤ 1.8 × tar",
        1.8,
        _own(peers.RESTORE, CPU),
        _source(peers.RESTORE, "tar | zstd", CPU),
    ),
    _ratio(
        "restore all into an empty directory",
        "≤ tar on the same file system",
        1,
        _own(peers.RESTORE),
        _source(peers.RESTORE, "tar | zstd"),
    ),
    Promise(
        "new bytes for an unchanged tree",
        "≤ 4 KiB",
        Form.BOUND,
        4 * KIB,
        (_own(peers.SAME, ADDED),),
    ),
    Promise(
        "new bytes for 10 changed files",
        "≤ 120 kB",
        Form.BOUND,
        120_000,
        (_own(TEN, ADDED),),
    ),
    Promise(
        "4 KiB edit inside a 1 GiB file",
        "≤ 512 KiB of new bytes",
        Form.BOUND,
        512 * KIB,
        (Case("database", "4 KiB edit", "treesnap", ADDED),),
    ),
    Promise(
        "in-process `create` with watch, one file changed",
        "≤ 6 ms median",
        Form.BOUND,
        0.006,
        (_source(watching.IN_PROCESS, watching.LIBRARY_WATCH),),
    ),
    Promise(
        "peak memory of snapshots and roll backs of 1,000,000 files",
        "≤ 200 MiB",
        Form.BOUND,
        200 * KIB * KIB,
        tuple(
            Case(trees.MILLION, work, "treesnap", MEMORY)
            for work in (peers.FIRST, peers.SAME, TEN, BACK)
        ),
    ),
    Promise(
        "peak memory of restoring 1,000,000 files",
        "≤ 200 MiB",
        Form.BOUND,
        200 * KIB * KIB,
        (Case(trees.MILLION, peers.RESTORE, "treesnap", MEMORY),),
    ),
    Promise(
        "peak memory of collecting garbage beside 1,000,000 files",
        "≤ 200 MiB",
        Form.BOUND,
        200 * KIB * KIB,
        (Case(trees.MILLION, peers.COLLECT, "treesnap", MEMORY),),
    ),
    _ratio(
        "`snap create -q` of 10 files, processor time",
        "≤ 1.2 × `python -c 'import click'`",
        1.2,
        Case("", floors.CREATE_FEW, "treesnap", CPU),
        CLICK._replace(quantity=CPU),
    ),
    _ratio(
        "`snap create -q` of 10 files, processor time",
        "with a fork server ≤ 0.5 × `python -c 'import click'`",
        0.5,
        Case("", floors.CREATE_FEW, serving.SERVER, CPU),
        CLICK._replace(quantity=CPU),
    ),
    _ratio(
        "`snap --version`",
        "≤ 1.2 × `python -c 'import click'`",
        1.2,
        Case("", "snap --version", "treesnap"),
        CLICK,
    ),
    _ratio(
        "`snap list`",
        "≤ 1.6 × `python -c 'import click'`",
        1.6,
        Case("", "snap list", "treesnap"),
        CLICK,
    ),
    Promise(
        "`create` with watch, one file changed, among 1,000 files, the source tree and 1,000,000",
        "the same within 1.3 ×",
        Form.SPREAD,
        1.3,
        tuple(Case(tree, ONE, watching.WATCH) for tree in SIZES),
    ),
    _ratio(
        "many small checkpoints of 10,000 files",
        "the last as fast as the first, within 1.3 ×",
        1.3,
        Case(CHECKPOINT_TREE, LATE, "treesnap"),
        Case(CHECKPOINT_TREE, EARLY, "treesnap"),
    ),
)
"""All of them, in the order of the table that promises them."""
