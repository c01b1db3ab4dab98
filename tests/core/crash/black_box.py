"""The installed ``snap`` as a black box: interrupted anywhere, then looked at from outside.

After an interruption ``snap status`` has to recover, and the tree has to be exactly the
old one or the new one. What the tree is, the oracle says, which shares no code with the
product.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from crash.scene import Operation, Scene
from crash.system_calls import ERRORS, METADATA, OPEN, Ended, Point, is_writing
from oracle import difference, record, without
from trees import LEFT_OUT, remove_tree

SHOWN_MAX = 6
"""Lines of a difference that are shown."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FAILED, UNFINISHED, NO_SNAPSHOT, NO_SPACE = 1, 3, 5, 8
"""Exit codes of ``snap``."""
DEGRADED = "could not be put back"
"""What a restore says of metadata that it was not permitted to set."""
TO_BE_FINISHED = ("could not be undone yet", "the next command on this root finishes or undoes it")
"""What a restore says when the next command has to go on with it."""
NEEDED = frozenset({OPEN, "write"})
"""Calls without which no command could say what went wrong."""
_METADATA_LINE = re.compile(r": (?:mode|uid|gid|mtime_ns|xattrs) is ")


def litter(scene: Scene) -> list[str]:
    """Returns what a restore leaves only until the next command."""
    found = [str(path) for path in scene.store.glob("roots/*/journal")]
    with suppress(FileNotFoundError):
        found += [name for name in os.listdir(scene.root) if name.startswith(".treesnap")]
    return found


def unfinished(scene: Scene) -> list[str]:
    """Returns what a writer leaves in the store until the next writer."""
    found = []
    for name in ("temporary", "pending"):
        with suppress(FileNotFoundError):
            found += [f"{name}/{item}" for item in os.listdir(scene.store / name)]
    return found


def state_problems(scene: Scene, *names: str) -> tuple[str, list[str]]:
    """Returns which of the named states the tree is in, and how it differs when it is in none."""
    found = record(scene.root)
    against: list[str] = []
    for name in names:
        lines = difference(scene.states[name], found)
        if not lines:
            return name, []
        more = [] if len(lines) <= SHOWN_MAX else [f"... and {len(lines) - SHOWN_MAX} more"]
        against += [f"not {name!r}: {line}" for line in lines[:SHOWN_MAX] + more]
    return "neither", against


def said_problems(ended: Ended, *codes: int) -> list[str]:
    """Returns what is wrong with how a command ended that nothing interrupted."""
    wrong = []
    said = f"{ended.out}{ended.err}".strip()
    if ended.code not in codes:
        wrong.append(f"{ended.words!r} exits with {ended.code}, not {codes}: {said}")
    if "Traceback" in ended.err or "Internal error" in ended.err:
        wrong.append(f"{ended.words!r} breaks: {said}")
    return wrong


def after_interruption(
    scene: Scene, operation: Operation, *, must_be_new: bool = False
) -> tuple[str, list[str]]:
    """Lets the next commands run; returns the state of the tree, and every problem.

    ``must_be_new`` is for an operation that has returned success.
    """
    codes = (0, NO_SNAPSHOT) if operation.start == "unknown" else (0,)
    problems = said_problems(scene.snap("status"), *codes)
    names = (operation.new,) if must_be_new else (operation.old, operation.new)
    state, differing = state_problems(scene, *names)
    problems += differing
    problems += [f"left behind: {path}" for path in litter(scene)]
    if operation.start == "unknown":
        problems += said_problems(scene.snap("create"), 0)
    problems += said_problems(scene.snap("verify", "--read-data"), 0)
    problems += _product_problems(scene, operation, must_be_new=must_be_new)
    if unfinished(scene):
        problems += said_problems(scene.snap("create"), 0)
        problems += [f"left behind after the next create: {path}" for path in unfinished(scene)]
    if operation.name == "gc" and not problems:
        problems += said_problems(scene.snap("restore", "before"), 0)
        problems += state_problems(scene, "before")[1]
    return state, problems


def _product_problems(scene: Scene, operation: Operation, *, must_be_new: bool) -> list[str]:
    """Returns what is wrong with the snapshot that the operation made, if it did."""
    if "second" not in operation.words:
        return []
    listed = scene.snap("list", "--json")
    problems = said_problems(listed, 0)
    if problems:
        return problems
    names = {item.get("name") for item in json.loads(listed.out)["snapshots"]}
    if "second" not in names:
        return ["the snapshot is lost"] if must_be_new else []
    target = scene.directory / "case" / "restored"
    problems += said_problems(scene.snap("restore", "second", "--to", str(target)), 0)
    if not problems:
        held = without(scene.states[operation.new], *LEFT_OUT)
        problems = [f"the snapshot: {line}" for line in difference(held, record(target))]
        remove_tree(os.fsencode(target))
    return problems


def after_error(
    scene: Scene, operation: Operation, ended: Ended, point: Point, number: int, *, lasting: bool
) -> tuple[str, list[str]]:
    """Returns the state of the tree after a call failed, and every problem.

    An error that happens once is undone at once, or coped with. One that lasts may
    leave the rest to the next command.
    """
    problems = message_problems(ended, number, lasting=lasting)
    if ended.code == 0 and point.call in METADATA and DEGRADED in ended.err:
        lines = difference(scene.states[operation.new], record(scene.root))
        return "degraded", problems + [line for line in lines if not _METADATA_LINE.search(line)]
    if ended.code != 0 and not lasting:
        problems += [f"at once: {line}" for line in state_problems(scene, operation.old)[1]]
    state, later = after_interruption(scene, operation, must_be_new=ended.code == 0)
    return ("coped" if ended.code == 0 else state), problems + later


def message_problems(ended: Ended, number: int, *, lasting: bool) -> list[str]:
    """Returns what is wrong with how a command told of an error."""
    codes = (0, NO_SPACE if number in FULL else FAILED)
    if lasting and any(words in ended.err for words in TO_BE_FINISHED):
        codes = (UNFINISHED,)
    problems = said_problems(ended, *codes)
    if ended.code != 0 and os.strerror(number) not in ended.err:
        problems.append(f"the message does not say {os.strerror(number)!r}: {ended.err.strip()}")
    return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One interruption of an operation."""

    operation: Operation
    how: str
    """"kill", "error" once, a "lasting" error, or "instant": a kill at a moment of time."""
    point: Point | None = None
    number: int = 0
    """The error."""
    share: float = 0.0
    """When the kill comes, as a share of the time that the operation takes."""
    again: float | None = None
    """When the first recovery is killed too, as such a share, or None."""

    def __str__(self) -> str:
        name = self.operation.name.replace(" ", "-")
        if self.how == "instant":
            again = "" if self.again is None else f"/{self.again:.4f}"
            return f"{name}/instant/{self.share:.4f}{again}"
        error = f"/{errno.errorcode[self.number]}" if self.number else ""
        return f"{name}/{self.how}/{self.point}{error}"


def cases(operation: Operation, points: Iterable[Point], seed: int) -> Iterator[Case]:
    """Yields a kill at every point, an error at it, and at every fifth one that lasts.

    The errors of a call take turns, beginning where the seed says. None lasts for a call
    that Python itself needs, to open its modules and to print.
    """
    turns: Counter[str] = Counter()
    for number, point in enumerate(points):
        yield Case(operation=operation, how="kill", point=point)
        if point.prints:
            continue
        errors = ERRORS[point.call]
        error = errors[(seed + turns[point.call]) % len(errors)]
        turns[point.call] += 1
        yield Case(operation=operation, how="error", point=point, number=error)
        if (number + seed) % 5 == 0 and point.call not in NEEDED:
            yield Case(operation=operation, how="lasting", point=point, number=error)


def instants(operation: Operation, random: Random, count: int) -> Iterator[Case]:
    """Yields kills at random moments, every other one with a kill of what recovers from it."""
    for number in range(count):
        again = random.random() if number % 2 else None
        yield Case(operation=operation, how="instant", share=random.random(), again=again)


def interrupt(scene: Scene, case: Case, duration_s: float = 0.0) -> tuple[str, list[str]]:
    """Interrupts an operation; returns what came of it, and every problem.

    ``duration_s`` is what the operation takes, for a kill at a moment.
    """
    operation, point = case.operation, case.point
    scene.reset(operation.start)
    if point is None:
        was_done = _killed_at_instant(scene, operation.words, case.share * duration_s)
        if case.again is not None:
            _killed_at_instant(scene, ("status",), case.again * duration_s)
        return after_interruption(scene, operation, must_be_new=was_done)
    if case.how == "kill":
        ended = scene.snap(*operation.words, injection=point.killing())
        state, problems = after_interruption(scene, operation, must_be_new=ended.code == 0)
        if not ended.was_killed:
            return "survived", problems + said_problems(ended, 0)
        return state, problems
    lasting = case.how == "lasting"
    ended = scene.snap(*operation.words, injection=point.failing(case.number, lasting=lasting))
    if ended.failed_call and not is_writing(ended.failed_call):
        # How often a command opens for reading depends on what is young: the count was another.
        return "other call", []
    return after_error(scene, operation, ended, point, case.number, lasting=lasting)


def _killed_at_instant(scene: Scene, words: Sequence[str], delay_s: float) -> bool:
    """Kills a command after a time; returns whether it had returned success before."""
    process = scene.start(*words)
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == 0
