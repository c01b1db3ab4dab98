"""Whose a change is, and what a rewind of one session does with each path; pure.

The states of a root follow each other in an order without clocks. Between two of them lies a
*span*. A change in a span belongs to the session that had a call of a tool open in it that may
have made it. A rewind goes back over the changes of each path, newest first: it undoes those of
its own session, and the first one that is not its own stays. So what others wrote is never lost,
and what an agent wrote over it goes.

What is certain: a version of others from a span in which the session had no call open survives,
as long as each call is told. What is not: a file that the user saves while a tool runs counts as
the tool's. A call whose end or beginning was not told is open as long as it may have been, and what
is undone because of it is said to be *perhaps* its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum

from treesnap.agents.marks import MarkPhase, ToldMark
from treesnap.core.model.named_tuple import NamedTuple

Version = Hashable
"""What is at a path: equal versions are the same; None is nothing."""


class Whose(StrEnum):
    """Whose the change of a path in a span is, seen from a session."""

    OWN = "own"
    PERHAPS = "perhaps"
    """Of a call of its own that has no known beginning or end, so another may have made it."""
    SHARED = "shared"
    """Another session had a call open, too."""
    UNKNOWN = "unknown"
    """The session had nothing open but what it left in the background, or no state shows when."""
    OTHERS = "others"


class Verdict(StrEnum):
    """What a rewind does with a path."""

    UNDONE = "undone"
    PERHAPS = "perhaps"
    """Undone, and it may have been the work of others."""
    KEPT = "kept"
    """Only others changed it."""
    CONFLICT = "conflict"
    """Others changed it after the agent did, so it is kept."""
    BACK_TO_OTHERS = "back-to-others"
    """The agent changed it after others did, so it is as those left it."""
    SHARED = "shared"
    """It is as it was left while another session worked, too."""
    UNKNOWN = "unknown"
    """It is as it was left by what may be the agent's in the background, or others'; or it changed
    while it was excluded."""
    BLOCKED = "blocked"
    """It would come back, and something else that is kept is in the place of its directory."""
    EXCLUDED = "excluded"
    """It would be undone, and is left alone because it is excluded by now."""


class OpenCall(NamedTuple):
    """What a session had open, from after one state up to another, by their numbers."""

    session: str
    kind: Whose
    """OWN for a call with a known beginning and end, PERHAPS for others, UNKNOWN for what was
    left in the background."""
    paths: tuple[bytes, ...] | None
    first: int
    last: int

    def may_change(self, names: Collection[bytes]) -> bool:
        """Returns whether it may have changed a file with these names, or a directory above."""
        return self.paths is None or any(
            path == name or path.startswith(name + b"/") for path in self.paths for name in names
        )


class Span(NamedTuple):
    """What lies between two states."""

    changes: Mapping[bytes, tuple[Version, Version]]
    """By path: the version before and after."""
    restored: Callable[[bytes], Mapping[Version, bool]] = lambda _: {}
    """Returns the versions of a path that restores in the span went to, and of each whether it
    was the session itself that was rewound."""
    unseen: Collection[bytes] = ()
    """Paths that changed in this span or an earlier one: they were excluded in between."""
    shared: Collection[bytes] = ()
    """Paths that others may have changed as well, by what they are: repositories of several
    directories, and what lies in roots of their own."""


class Judgement(NamedTuple):
    """What a rewind does with a path, and why."""

    verdict: Verdict
    stop: int | None
    """The place of the span whose end has the version that stays; None for the target's."""
    is_live: bool
    """Whether that is the version that is there."""
    sessions: tuple[str, ...] = ()
    """Who had a call open in which it was made, of other sessions; none for the user. Of what was
    undone: who may have made a part of that."""
    is_certain: bool = True
    """False where what was undone may be the work of others."""


def calls_in(marks: Iterable[ToldMark], now: int, telling: Collection[str] = ()) -> list[OpenCall]:
    """Returns what each session had open; ``marks`` are in order, and ``now`` is the newest state.

    ``telling`` are sessions that certainly tell each call, also where they made none.

    A call is open from its beginning to its end; one whose end was told and not captured, to the
    next state, in which others may have worked as well. One without an end may be open to the
    session's next prompt or end of a turn, or until now, and one without a beginning since the mark
    before. Any other session that told none has one from each prompt to the end of its turn.
    """
    told = list(marks)
    calls: list[OpenCall] = []
    running: dict[str, dict[str, list[ToldMark]]] = defaultdict(dict)
    ended: dict[str, set[str]] = defaultdict(set)
    background: dict[str, dict[str, ToldMark]] = defaultdict(dict)
    newest: dict[str, int] = {}
    told_calls = {mark.session for mark in told if mark.phase in (MarkPhase.PRE, MarkPhase.GAP)}
    with_calls = told_calls.union(telling)

    def end(began: ToldMark, at: int, *, is_known: bool) -> None:
        is_whole = is_known and began.phase is MarkPhase.PRE
        kind = Whose.OWN if is_whole else Whose.PERHAPS
        calls.append(OpenCall(began.session, kind, began.paths, began.at, at))

    def close(own: dict[str, list[ToldMark]], those: list[ToldMark], at: int) -> None:
        for began in those:
            own[began.call].remove(began)
            end(began, at, is_known=False)

    def settle(session: str, names: Iterable[str], at: int) -> None:
        for name in names:
            began = background[session].pop(name, None)
            if began is not None:
                calls.append(OpenCall(session, Whose.UNKNOWN, None, began.at, at))

    for mark in told:
        session, own = mark.session, running[mark.session]
        if mark.phase in (MarkPhase.PRE, MarkPhase.GAP):
            own.setdefault(mark.call, []).append(mark)
        elif mark.phase in (MarkPhase.POST, MarkPhase.POST_GAP) and mark.call:
            begun = own.get(mark.call)
            if begun:
                end(begun.pop(0), mark.end, is_known=mark.phase is MarkPhase.POST)
                ended[session].add(mark.call)
            elif mark.call not in ended[session]:  # else its end was told again
                since = newest.get(session, 0)
                calls.append(OpenCall(session, Whose.PERHAPS, None, since, mark.end))
        elif mark.phase in (MarkPhase.POST, MarkPhase.POST_GAP):
            for began in [began for begun in own.values() for began in begun]:
                end(began, mark.end, is_known=mark.phase is MarkPhase.POST)
            own.clear()
        elif mark.phase is MarkPhase.BACKGROUND:
            background[session][mark.call] = mark
        elif mark.phase is MarkPhase.SETTLED:
            settle(session, [mark.call] if mark.call else list(background[session]), mark.at)
            if not mark.call:  # so no agent works on: one was interrupted if its call has no end
                close(own, [began for begun in own.values() for began in begun], mark.at)
        elif mark.phase in (MarkPhase.TURN, MarkPhase.END, MarkPhase.END_GAP):
            of_agent = [one for begun in own.values() for one in begun if one.agent == mark.agent]
            close(own, of_agent, mark.end)
        if mark.phase is MarkPhase.TURN and session not in with_calls:
            own.setdefault("", []).append(mark)
        newest[session] = mark.at
    for session, own in running.items():
        for began in [began for begun in own.values() for began in begun]:
            end(began, now, is_known=False)
        settle(session, list(background[session]), now)
    return calls


def calls_by_span(calls: Iterable[OpenCall], states: Sequence[int]) -> list[list[OpenCall]]:
    """Returns what was open in each span; ``states`` are the numbers of the states, in order.

    The first span has none. A span from which states were deleted has all that was open in it; what
    was open in a part of it alone may have changed nothing, so it is not certain that it did.
    """
    spans: list[list[OpenCall]] = [[] for _ in states]
    for call in calls:
        if call.first == call.last:
            continue
        first = bisect_right(states, call.first)
        last = bisect_left(states, call.last)
        for place in range(max(first, 1), min(last, len(states) - 1) + 1):
            is_whole = call.first <= states[place - 1] and states[place] <= call.last
            is_less = call.kind is Whose.OWN and not is_whole
            spans[place].append(call._replace(kind=Whose.PERHAPS) if is_less else call)
    return spans


class Attribution:
    """The spans since a target, seen from a session."""

    def __init__(
        self,
        session: str,
        spans: Sequence[Span],
        calls: Sequence[Sequence[OpenCall]],
        *,
        widened: Collection[Whose] = (),
        names: Callable[[bytes], tuple[bytes, ...]] = lambda path: (path,),
    ) -> None:
        """Takes what lies between the states since the target, oldest first, and what was open.

        ``widened`` are classes that are undone as well, and ``names`` are all of a file.
        """
        self._session = session
        self._spans = spans
        self._calls = calls
        self._widened = widened
        self._names = names

    def judged(self) -> dict[bytes, Judgement]:
        """Returns what a rewind does with each path that changed since the target."""
        changed: dict[bytes, list[int]] = defaultdict(list)
        for place, span in enumerate(self._spans):
            for path in span.changes:
                changed[path].append(place)
        return {path: self._folded(path, places) for path, places in changed.items()}

    def is_own(self, path: bytes, place: int) -> bool:
        """Returns whether a change of a path in a span may be undone as the session's own."""
        return self.whose(path, place)[0] in (Whose.OWN, Whose.PERHAPS)

    def whose(self, path: bytes, place: int) -> tuple[Whose, tuple[str, ...]]:
        """Returns whose the change of a path in a span is, and which other sessions worked."""
        if path in self._spans[place].unseen:
            return Whose.UNKNOWN, ()
        names = self._names(path)
        may = [call for call in self._calls[place] if call.may_change(names)]
        mine = {call.kind for call in may if call.session == self._session}
        others = tuple(sorted({call.session for call in may if call.session != self._session}))
        if not mine:
            return Whose.OTHERS, others
        if others or path in self._spans[place].shared:
            return Whose.SHARED, others
        kinds = (Whose.OWN, Whose.PERHAPS)
        return next((kind for kind in kinds if kind in mine), Whose.UNKNOWN), others

    def _folded(self, path: bytes, places: Sequence[int]) -> Judgement:
        """Goes back over the changes of a path, newest first, to the first that is not undone."""
        versions = [self._spans[places[0]].changes[path][0]]
        versions += [self._spans[place].changes[path][1] for place in places]
        target, live = versions[0], versions[-1]
        position = len(places)
        stopped_by: Whose | None = None
        sessions: tuple[str, ...] = ()
        undone_of: set[str] = set()
        is_certain = True
        while position:
            place = places[position - 1]
            whose, others = self.whose(path, place)
            if self.is_restored(path, place):
                # It brought back an old version, and nothing new: on from where that was made.
                # From the newest such place, so what others did between two is not passed over.
                older = [at for at in range(position) if versions[at] == versions[position]]
                if older:
                    position = older[-1]
                    continue
                # From before the target: a rewind of its own goes back, as all that it did.
                is_own = self._spans[place].restored(path)[versions[position]]
                whose = Whose.OWN if is_own else Whose.OTHERS
            if whose in (Whose.OWN, Whose.PERHAPS) or whose in self._widened:
                is_certain = is_certain and whose is Whose.OWN
                undone_of.update(others)
                position -= 1
                continue
            stopped_by, sessions = whose, others
            break
        version = versions[position]
        stop = places[position - 1] if position else None
        is_live = version == live
        if stopped_by is None or version == target:
            verdict = Verdict.UNDONE if is_certain else Verdict.PERHAPS
            verdict = Verdict.KEPT if is_live else verdict
            sessions = tuple(sorted(undone_of))
        elif stopped_by in (Whose.SHARED, Whose.UNKNOWN):
            verdict = Verdict(stopped_by.value)
        elif not is_live:
            verdict = Verdict.BACK_TO_OTHERS
        else:
            has_own = any(
                self.is_own(path, place) and not self.is_restored(path, place)
                for place in places[:position]
            )
            verdict = Verdict.CONFLICT if has_own else Verdict.KEPT
        return Judgement(verdict, stop, is_live, sessions, is_certain)

    def is_restored(self, path: bytes, place: int) -> bool:
        """Returns whether a change of a path in a span brought back what was restored."""
        span = self._spans[place]
        return span.changes[path][1] in span.restored(path)
