"""Whose work a rewind undoes, as a model: naive, and without a line of the product.

A history is a list of whole states and the marks of hooks between them. :func:`fold` says what a
rewind does with each path. :class:`World` writes with known authors, and is what the fold is
judged by: hooks see states alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

OWN, PERHAPS, SHARED, OTHERS, UNKNOWN = "own", "perhaps", "shared", "others", "unknown"
PHASES = [
    *("turn", "turn", "pre", "pre", "write", "write", "write"),
    *("post", "post", "post", "user", "user", "end", "job"),
]
FILES = [f"p{number}" for number in range(6)]
State = dict[str, int]
Opened = dict[str, list[tuple[str, frozenset[str] | None]]]


class Told(NamedTuple):
    """What a hook tells; ``at`` is the place of the newest state when it was told."""

    at: int
    session: str
    phase: str
    key: str = ""
    paths: frozenset[str] | None = None


class Verdict(NamedTuple):
    """What the fold says of a path."""

    value: int | None
    what: str
    is_certain: bool = True


class Rules(NamedTuple):
    """What the fold goes by; a test breaks one at a time."""

    shared_is_own: bool = False
    job_is_own: bool = False
    restore_is_others: bool = False
    never_closes: bool = False
    ignores_paths: bool = False
    oldest_version: bool = False
    gaps_end_nothing_later: bool = False


RULES = Rules()


def opened(told: list[Told], count: int, rules: Rules = RULES) -> list[Opened]:
    """Returns what each session may have had open in each span, from the first to the last."""
    spans: list[Opened] = [{} for _ in range(count)]

    def add(session: str, kind: str, paths: frozenset[str] | None, first: int, last: int) -> None:
        for span in range(first + 1, min(last, count - 1) + 1):
            spans[span].setdefault(session, []).append((kind, paths))

    running: dict[tuple[str, str], Told] = {}
    background: dict[tuple[str, str], int] = {}
    newest: dict[str, int] = {}
    for mark in told:
        name = mark.session
        if mark.phase in ("pre", "gap"):
            running[name, mark.key] = mark
        elif mark.phase == "post":
            began = running.pop((name, mark.key), None)
            if began is None:
                add(name, "?", None, newest.get(name, 0), mark.at)
            else:
                kind = "call" if began.phase == "pre" else "?"
                add(name, kind, began.paths, began.at, mark.at)
        elif mark.phase == "background":
            background[name, mark.key] = mark.at
        elif mark.phase == "settled":
            if (name, mark.key) in background:
                add(name, "job", None, background.pop((name, mark.key)), mark.at)
        elif mark.phase in ("turn", "end", "end-gap") and not rules.never_closes:
            is_gap = mark.phase == "end-gap" and not rules.gaps_end_nothing_later
            for key in [key for key in running if key[0] == name]:
                began = running.pop(key)
                add(name, "?", began.paths, began.at, mark.at + is_gap)
        newest[name] = mark.at
    for (name, _), began in running.items():
        add(name, "?", began.paths, began.at, count - 1)
    for (name, _), at in background.items():
        add(name, "job", None, at, count - 1)
    return spans


def whose(span: Opened, session: str, path: str, rules: Rules = RULES) -> str:
    """Returns whose a change of a path in a span is, seen from a session."""

    def may(name: str) -> set[str]:
        return {
            kind
            for kind, paths in span.get(name, ())
            if paths is None or path in paths or rules.ignores_paths
        }

    mine, theirs = may(session), [name for name in span if name != session and may(name)]
    if not mine:
        return OTHERS
    if theirs and not rules.shared_is_own:
        return SHARED
    if "call" in mine or (rules.job_is_own and "job" in mine):
        return OWN
    return PERHAPS if "?" in mine else UNKNOWN


def fold(
    states: list[State],
    spans: list[Opened],
    restores: dict[int, str],
    session: str,
    target: int,
    rules: Rules = RULES,
) -> dict[str, Verdict]:
    """Returns what a rewind of a session to a state does with each path that changed since."""
    last = len(states) - 1
    found = {}
    for path in {path for state in states[target:] for path in state}:
        versions = [state.get(path) for state in states]
        if all(version == versions[target] for version in versions[target:]):
            continue
        at, why, is_certain = last, None, True
        while at > target:
            if versions[at] == versions[at - 1]:
                at -= 1
                continue
            of = whose(spans[at], session, path, rules)
            if at in restores and not rules.restore_is_others:
                older = [
                    one for one in range(at - 1, target - 1, -1) if versions[one] == versions[at]
                ]
                if older:
                    at = older[-1] if rules.oldest_version else older[0]
                    continue
                of = OWN if restores[at] == session else OTHERS
            elif at in restores:
                of = OTHERS
            if of not in (OWN, PERHAPS):
                why = of
                break
            is_certain = is_certain and of == OWN
            at -= 1
        value = versions[at]
        if why is None or value == versions[target]:
            undone = "undone" if is_certain else "perhaps"
            found[path] = Verdict(value, "kept" if value == versions[last] else undone, is_certain)
        elif why in (SHARED, UNKNOWN):
            found[path] = Verdict(value, why, is_certain)
        elif value != versions[last]:
            found[path] = Verdict(value, "back-to-others", is_certain)
        else:
            has_own = any(
                versions[one] != versions[one - 1]
                and one not in restores
                and whose(spans[one], session, path, rules) in (OWN, PERHAPS)
                for one in range(target + 1, at + 1)
            )
            found[path] = Verdict(value, "conflict" if has_own else "kept", is_certain)
    return found


class Rates(NamedTuple):
    """How often the world does what makes attribution hard."""

    sneaks: float = 0.0
    """The user writes while a call is open."""
    gaps: float = 0.0
    """The beginning of a call is told, and not captured."""
    losses: float = 0.0
    """The beginning of a call is not told at all."""
    has_no_posts: bool = False
    """The host never tells that a call has ended."""
    interruptions: float = 0.0
    """A call ends without being told; what it did is done."""
    late: float = 0.0
    """The end of a call is told, and captured, after something else has happened."""
    commands: float = 0.0
    """A prompt is told, and not captured: a command is one."""


class World:
    """Writers who are known, and hooks that see states alone."""

    def __init__(self, chooser: random.Random, rates: Rates, rules: Rules = RULES) -> None:
        self.chooser, self.rates, self.rules = chooser, rates, rules
        self.live: State = dict.fromkeys(FILES, 0)
        self.author: dict[int, str] = {0: "user"}
        self.states: list[State] = [dict(self.live)]
        self.told: list[Told] = []
        self.restores: dict[int, str] = {}
        """By place of a state: the session whose rewind led to it."""
        self.next = 0
        self.calls: dict[str, dict[str, frozenset[str] | None]] = {"a": {}, "b": {}}
        self.untold: dict[str, list[str]] = {"a": [], "b": []}
        """Calls that have ended, of which that is not told yet."""
        self.interrupted: set[str] = set()
        """Sessions that may have a call without an end."""
        self.stopped: set[str] = set()
        """Those of which a prompt that was not captured ended one, until the next state."""
        self.jobs: dict[str, str] = {}
        self.targets: dict[str, list[int]] = {"a": [], "b": []}
        self.sneaked: set[int] = set()
        """Versions of the user that look like those of a session, by what hooks tell."""
        self.has_jobs = chooser.random() < 0.5
        self.sessions = "ab" if chooser.random() < 0.8 else "a"
        self.is_lost = False

    def write(self, who: str, path: str) -> None:
        """Changes a file, or removes it."""
        self.next += 1
        self.author[self.next] = who
        if who == "user" and self._may_be_of_a(path):
            self.sneaked.add(self.next)
        if self.chooser.random() < 0.2 and path in self.live:
            del self.live[path]
        else:
            self.live[path] = self.next

    def _may_be_of_a(self, path: str) -> bool:
        """Returns whether a change looks like one of the session that is rewound."""
        if self.untold["a"] or "a" in self.interrupted | self.stopped:
            return True
        return any(paths is None or path in paths for paths in self.calls["a"].values())

    def capture(self) -> int:
        """Returns the place of the state that is there now."""
        if self.states[-1] != self.live:
            self.states.append(dict(self.live))
            self.stopped.clear()
        return len(self.states) - 1

    def tell(
        self, session: str, phase: str, key: str = "", paths: frozenset[str] | None = None
    ) -> None:
        """Captures, and tells."""
        self.told.append(Told(self.capture(), session, phase, key, paths))

    def step(self) -> None:
        """Does one thing, or nothing."""
        chooser, session = self.chooser, self.chooser.choice(self.sessions)
        getattr(self, f"_{chooser.choice(PHASES)}")(session)

    def _turn(self, session: str) -> None:
        if not self.calls[session] and self.chooser.random() < self.rates.commands:
            if self.untold[session] or session in self.interrupted:
                self.stopped.add(session)
            self.untold[session].clear()
            self.interrupted.discard(session)
            self.told.append(Told(len(self.states) - 1, session, "end-gap"))
        elif not self.calls[session]:
            self.untold[session].clear()
            self.tell(session, "turn")
            self.targets[session].append(len(self.states) - 1)
            self.interrupted.discard(session)

    def _pre(self, session: str) -> None:
        chooser = self.chooser
        if not self.targets[session] or len(self.calls[session]) > 1:
            return
        key = f"k{self.next}.{chooser.random()}"
        paths = frozenset(chooser.sample(FILES, 1)) if chooser.random() < 0.4 else None
        if chooser.random() < self.rates.gaps:
            newest = self.states[-1]
            self.sneaked |= {one for path, one in self.live.items() if newest.get(path) != one}
            self.told.append(Told(len(self.states) - 1, session, "gap", key, paths))
        elif chooser.random() < self.rates.losses:
            self.is_lost = True
        else:
            self.tell(session, "pre", key, paths)
        self.calls[session][key] = paths

    def _write(self, session: str) -> None:
        if self.calls[session]:
            key = self.chooser.choice(sorted(self.calls[session]))
            paths = self.calls[session][key]
            self.write(session, self.chooser.choice(sorted(paths) if paths else FILES))

    def _post(self, session: str) -> None:
        chooser = self.chooser
        if self.untold[session] and chooser.random() < 0.5:
            self.tell(session, "post", self.untold[session].pop(0))
        elif self.calls[session]:
            key = chooser.choice(sorted(self.calls[session]))
            del self.calls[session][key]
            if self.rates.has_no_posts or chooser.random() < self.rates.interruptions:
                self.interrupted.add(session)
            elif chooser.random() < self.rates.late:
                self.untold[session].append(key)
            else:
                self.tell(session, "post", key)

    def _user(self, _: str) -> None:
        is_open = any(self.calls.values()) or any(self.untold.values())
        if not is_open or self.chooser.random() < self.rates.sneaks:
            self.write("user", self.chooser.choice(FILES))

    def _end(self, session: str) -> None:
        if not self.calls[session]:
            self.untold[session].clear()
            self.tell(session, "end")
            self.interrupted.discard(session)

    def _job(self, session: str) -> None:
        if not self.has_jobs or not self.targets[session]:
            return
        if session in self.jobs and self.chooser.random() < 0.5:
            self.tell(session, "settled", self.jobs.pop(session))
        elif session not in self.jobs:
            self.jobs[session] = f"j{self.next}"
            self.tell(session, "background", self.jobs[session])
        else:
            self.write(session, self.chooser.choice(FILES))

    def folded(self, session: str, target: int) -> dict[str, Verdict]:
        """Returns what a rewind does."""
        spans = opened(self.told, len(self.states), self.rules)
        return fold(self.states, spans, self.restores, session, target, self.rules)

    def rewind(self, session: str, target: int) -> dict[str, Verdict]:
        """Carries a rewind out, with a state before it and one after it."""
        before = self.capture()
        found = self.folded(session, target)
        for path, verdict in found.items():
            self.live.pop(path, None)
            if verdict.value is not None:
                self.live[path] = verdict.value
        if self.capture() > before:
            self.restores[len(self.states) - 1] = session
        return found


def worked(seed: int, rates: Rates, rules: Rules = RULES) -> World:
    """Returns a world in which much has happened."""
    chooser = random.Random(seed)
    world = World(chooser, rates, rules)
    for _ in range(chooser.randrange(20, 200)):
        world.step()
        if chooser.random() < 0.1 and world.targets["a"] and not any(world.calls.values()):
            world.rewind("a", chooser.choice(world.targets["a"]))
    return world


def check(
    seed: int,
    tally: Counter[str],
    rates: Rates,
    rules: Rules = RULES,
    also: Callable[[World, int], None] | None = None,
) -> None:
    """Rewinds a session of a random history; raises AssertionError for what must not be.

    Only versions that existed; every path that does not go back is named; no version of others
    lost, unless it was written while a call may have been open that may have changed the path; own
    work undone unless shared; twice is once. ``also`` is told the history before the rewind, and
    where it goes.
    """
    world = worked(seed, rates, rules)
    if not world.targets["a"]:
        return
    target = world.chooser.choice(world.targets["a"])
    world.capture()
    if also is not None:
        also(world, target)
    before, states = dict(world.live), list(world.states)
    is_known = rates == Rates() and not world.has_jobs
    found = world.rewind("a", target)
    for path in {path for state in states[target:] for path in state}:
        was, now, goal = before.get(path), world.live.get(path), states[target].get(path)
        assert now in {state.get(path) for state in states}, "only versions that were there"
        if now != goal:
            assert path in found, "what does not go back is named"
        who = world.author[was] if was is not None else None
        is_newer = was != goal and was not in {state.get(path) for state in states[: target + 1]}
        if who is None or not is_newer:
            continue
        if who != "a":
            tally["versions of others"] += 1
            if now != was:
                tally["lost"] += 1
                tally["lost and said"] += not found[path].is_certain
                is_allowed = was in world.sneaked or world.is_lost
                assert is_allowed, f"only what was written during a call ({seed} {path})"
        else:
            tally["own versions"] += 1
            tally["undone"] += now != was
            if now == was and is_known:
                assert found[path].what == "shared", f"own work is undone unless shared ({seed})"
            is_alone = not any(mark.session == "b" for mark in world.told)
            if now == was and is_alone and not world.has_jobs and not rates.losses:
                raise AssertionError(f"the work of a session alone is undone ({seed} {path})")
    again = world.rewind("a", target)
    assert all(world.live.get(path) == verdict.value for path, verdict in again.items()), "twice"
    tally["runs"] += 1
    tally.update(f"verdict {verdict.what}" for verdict in found.values())
