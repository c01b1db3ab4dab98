"""A soak: many processes on one store, killed and stopped at random, and what must be true.

Chance decides what happens, and a seed decides chance; but no two runs are the same, because
no test can say when the system runs which process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from crash.scene import environment
from soak.ledger import Line, Log
from soak.place import COLLECTED, LEFT, MOVED, REMOVED, Place

TESTS = Path(__file__).parents[2]
KILL_WEIGHTS = {
    "writer": 4.0,
    "threads": 0.5,
    "deleter": 1.0,
    "pruner": 1.0,
    "collector": 1.0,
    "reader": 0.5,
    "caller": 0.3,
    "repairer": 1.0,
    "mover": 0.1,
    "settler": 0.4,
    "newcomer": 0.5,
    "damager": 0.4,
    "holder": 0.6,
    "planner": 0.6,
    "forgetter": 0.5,
}
"""How often a process of each role is killed, beside the others."""
STOPPED = ("writer", "writer", "writer", "newcomer")
"""Who is stopped in a capture, of a known root or of a new one."""
PAUSE_S = (0.05, 0.6)
"""Between two looks at the actors."""
LINES_MAX = 60
"""Of the counts between two kills: on a loaded machine all do less, and are killed less often."""
POLLS_MAX, POLL_S = 200, 0.005
"""How often, and at what distance, it is looked whether a writer is where it is to be stopped."""
CAPTURE_S = 0.1
"""About so long a capture takes."""
REMOVALS = 2
"""So many collections remove something while a writer stands; then it goes on."""
ATTEMPTS = 12
"""Or so many were tried: load and chance decide how much garbage there is."""
LEFT_MAX = 9
"""More of them may not leave all the garbage that they found, if none removes any."""
MOVES_MIN = 2
"""So many moves to the other file system end after each stop: there and back."""
TRIES_MAX = 40
"""More attempts at moves than that are not needed: few processes are at work meanwhile."""
REST_LINES = 1000
"""Of the counts between these moves and the next stop, with all actors at work."""
KILLS_MAX = 2
"""So often the collector is killed while a writer stands; then it is spared, and must end."""
ROUNDS_MAX = 4000
"""Rounds of others, within which a collector that is not killed does something."""
WEDGED_S = 180.0
"""After this long in which no actor did anything, something must be stuck."""


Verdict = Callable[[Sequence[Line]], tuple[bool, str | None]]


@dataclass
class Child:
    """An actor that is running."""

    role: str
    number: int
    process: subprocess.Popen[bytes]
    before: int
    """Lines of the counts before it was started."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.number}"


class Phase:
    """What is counted since a moment."""

    def __init__(self, counts: Log) -> None:
        self._counts = counts
        self._begun = self._seen = len(counts.lines())
        self._seen_s = time.monotonic()

    def lines(self) -> list[Line]:
        """Returns the lines of the counts since then."""
        lines = self._counts.lines()
        if len(lines) > self._seen:
            self._seen, self._seen_s = len(lines), time.monotonic()
        return lines[self._begun :]

    def judged(self, verdict: Verdict) -> tuple[bool, str | None]:
        """Says whether the phase has to end, and what is wrong."""
        found = verdict(self.lines())
        if time.monotonic() > self._seen_s + WEDGED_S:
            return True, "no actor does anything"
        return found


@dataclass
class Stop:
    """A writer that stands still."""

    child: Child
    phase: Phase
    kills: int = 0
    """How often the collector was killed since."""

    @property
    def spares_collector(self) -> bool:
        """Whether the collector is left alone, so that it has to get somewhere."""
        return self.kills >= KILLS_MAX


def verdict(lines: Sequence[Line]) -> tuple[bool, str | None]:
    """Says of what was done while a writer stood whether that is enough, and what is wrong.

    Counts what others did meanwhile, never time: the machine may have other things to do.
    """
    whose = [line["who"].partition("-")[0] for line in lines]
    tries = [line["what"] for line, who in zip(lines, whose, strict=True) if who == "collector"]
    ended = Counter(what for what in tries if what in COLLECTED)
    busy = sum(what.startswith("busy") for what in tries)
    if ended[REMOVED] >= REMOVALS:
        return True, None
    if ended[LEFT] > LEFT_MAX and not ended[REMOVED]:
        return True, "garbage is left"
    if ended.total() + busy >= ATTEMPTS:
        return True, None if ended else "collections are never possible"
    others = next((at for at, who in enumerate(reversed(whose)) if who == "collector"), len(whose))
    if others > ROUNDS_MAX:
        return True, "a collection does not end"
    return False, None


def moves_verdict(lines: Sequence[Line]) -> tuple[bool, str | None]:
    """Says of what was done while the store could be moved whether that is enough, and what is
    wrong.
    """
    whose = [line["who"].partition("-")[0] for line in lines]
    tries = [line["what"] for line, who in zip(lines, whose, strict=True) if who == "mover"]
    tries = [what for what in tries if what not in {"began", "busy", "round"}]
    moves = tries.count(MOVED)
    others = next((at for at, who in enumerate(reversed(whose)) if who == "mover"), len(whose))
    if moves >= MOVES_MIN:
        return True, None
    if len(tries) > TRIES_MAX:
        return True, f"nothing was proven about moves: {moves} of {len(tries)} were possible"
    return others > ROUNDS_MAX, "a move does not end" if others > ROUNDS_MAX else None


@dataclass
class Soak:
    """Starts the actors, and kills and stops them.

    One phase follows another. While a writer stands, others collect, and no store is moved. Then
    no actor stands and none holds a snapshot, until the store was moved to the other file system
    and back. Then all are at work.
    """

    place: Place
    random: Random
    cast: dict[str, int]
    """How many actors there are of each role."""
    children: list[Child] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """What was done to the actors."""
    _stop: Stop | None = None
    _moves: Phase | None = None
    """While the store can be moved."""

    def __post_init__(self) -> None:
        self._counts = self.place.counts()
        self._kills_at = self._stops_at = 0

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Lets the actors act for as long as it goes on, then until all have ended."""
        for role, count in self.cast.items():
            for number in range(count):
                self.children.append(self._start(role, number))
        try:
            while goes_on() or self._stop is not None or self._moves is not None:
                time.sleep(self.random.uniform(*PAUSE_S))
                self._disturb()
            self._end()
        finally:
            for child in self.children:
                child.process.kill()
                child.process.wait()

    def _start(self, role: str, number: int) -> Child:
        before = len(self._counts.lines())
        words = (self.place.directory, len(self.place.roots), role, number, self._seed())
        source = Path(sys.modules["treesnap"].__file__ or "").parent.parent
        variables = {
            **environment(self.place.directory),
            "PYTHONPATH": os.pathsep.join(
                map(str, (source, TESTS, TESTS / "core", TESTS / "support"))
            ),
        }
        with (self.place.logs / f"{role}-{number}").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "soak.actors", *map(str, words)],
                env=variables,
                cwd=self.place.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return Child(role, number, process, before)

    def _seed(self) -> int:
        return self.random.randrange(1 << 32)

    def _disturb(self) -> None:
        """Kills an actor at times, and lets a writer stand still about half of the time."""
        for child in self.children:
            if child.process.poll() is not None:
                self.place.report("soak", f"{child.name} ended with {child.process.returncode}")
                self._again(child)
        line_count = len(self._counts.lines())
        if self._stop is not None:
            self._look_at_others(self._stop)
        elif self._moves is not None:
            self._look_at_moves(self._moves)
        elif line_count >= self._stops_at:
            self._stop_a_writer()
        stop = self._stop
        if line_count < self._kills_at:
            return
        self._kills_at = line_count + self.random.randrange(LINES_MAX)
        spared = {"collector"} if stop is not None and stop.spares_collector else set()
        moving = [
            child
            for child in self.children
            if child.role not in spared
            and (stop is None or child is not stop.child)
            and self._has_begun(child)
        ]
        if not moving:
            return
        weights = [KILL_WEIGHTS[child.role] / self.cast[child.role] for child in moving]
        (victim,) = self.random.choices(moving, weights)
        if stop is not None and victim.role == "collector":
            stop.kills += 1
        victim.process.kill()
        victim.process.wait()
        self.done[f"{victim.role} killed"] += 1
        self._again(victim)

    def _has_begun(self, child: Child) -> bool:
        """Returns whether it has done anything: on a loaded machine a start takes seconds."""
        return any(line["who"] == child.name for line in self._counts.lines()[child.before :])

    def _again(self, child: Child) -> None:
        new = self._start(child.role, child.number)
        child.process, child.before = new.process, new.before

    def _stop_a_writer(self) -> None:
        """Stops a writer within a capture, every other time while its snapshot is pending."""
        role = self.random.choice(STOPPED)
        writers = [child for child in self.children if child.role == role]
        child = self._stopped_while_pending(writers) if self.random.random() < 0.5 else None
        where = "while its snapshot was pending"
        if child is None:
            child = self.random.choice(writers)
            for _ in range(POLLS_MAX):
                if self._phase_of(child) == "create":
                    break
                time.sleep(POLL_S)
            time.sleep(self.random.uniform(0.0, CAPTURE_S))
            child.process.send_signal(signal.SIGSTOP)
            where = "in a capture" if self._phase_of(child) == "create" else "elsewhere"
        self.done[f"{role} stopped {where}"] += 1
        self._stop = Stop(child, Phase(self._counts))

    def _stopped_while_pending(self, writers: list[Child]) -> Child | None:
        """Stops the writer whose snapshot appears next in ``pending``, if one does soon."""
        pending = self.place.store / "pending"
        for _ in range(POLLS_MAX):
            if pending.exists() and os.listdir(pending):
                break
            time.sleep(POLL_S / 10)
        for child in writers:
            child.process.send_signal(signal.SIGSTOP)
        names = set(os.listdir(pending)) if pending.exists() else set()
        found = [child for child in writers if names & _slots_of(child.process.pid)]
        for child in writers:
            if child not in found[:1]:
                child.process.send_signal(signal.SIGCONT)
        return found[0] if found else None

    def _look_at_others(self, stop: Stop) -> None:
        """Lets the writer that stands go on when the others have done enough, or cannot."""
        is_enough, problem = stop.phase.judged(verdict)
        if problem is not None:
            self.place.report("soak", f"{problem} while {stop.child.name} stands")
        if is_enough:
            for line in stop.phase.lines():
                role = line["who"].partition("-")[0]
                self.done[f"while a writer stood: {role}"] += line["what"] == "round"
            stop.child.process.send_signal(signal.SIGCONT)
            self._stop, self._moves = None, Phase(self._counts)
            self.place.moves_file.touch()

    def _look_at_moves(self, phase: Phase) -> None:
        """Lets all be at work again when the store was moved often enough, or cannot be."""
        is_enough, problem = phase.judged(moves_verdict)
        if problem is not None:
            self.place.report("soak", problem)
        if is_enough:
            self.place.moves_file.unlink()
            self._moves, self._stops_at = None, len(self._counts.lines()) + REST_LINES
            self.done["phases of moves"] += 1

    def _phase_of(self, child: Child) -> str:
        path = self.place.directory / "ledger" / f"phase-{child.name}"
        return path.read_text() if path.exists() else ""

    def _end(self) -> None:
        """Lets every actor finish its round."""
        self.place.stop_file.touch()
        deadline = time.monotonic() + WEDGED_S
        for child in self.children:
            try:
                code = child.process.wait(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.send_signal(signal.SIGUSR1)
                self.place.report("soak", f"{child.name} does not end; its log says where it is")
                continue
            if code != 0:
                self.place.report("soak", f"{child.name} ended with {code}")


def _slots_of(pid: int) -> set[str]:
    """Returns the names of the slots that a process has open."""
    found = set()
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                directory, name = os.path.split(os.readlink(f"/proc/{pid}/fd/{fd}"))
                if directory.endswith("/slots"):
                    found.add(name)
    return found


@contextmanager
def timed(done: Counter[str], what: str) -> Iterator[None]:
    """Counts the seconds that a block takes."""
    begun = time.monotonic()
    yield
    done[f"seconds: {what}"] += round(time.monotonic() - begun)
