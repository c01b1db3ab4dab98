"""A naive three-way merge of trees in memory; shares no code with the product.

A tree is a dictionary of what stands at each path. Nothing here is fast, and each rule stands for
itself: each property of a path, the lines of a text, whether a directory is left, where directories
were moved, and of each two paths whether they are names of one file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from stat import S_IFMT, S_IMODE, S_ISDIR, S_ISREG

from state import RecordedPath, TreeState

REPOSITORY_NAMES = {b".git", b".hg", b".jj", b".sl"}
MERGE_TIME_NS = -1
Lines = list[bytes]


@dataclass
class Merge:
    """What a merge has to come to."""

    tree: TreeState
    conflicts: set[bytes] = field(default_factory=set)
    merged_texts: set[bytes] = field(default_factory=set)
    """Files with a new text; their time is that of the merge, here ``MERGE_TIME_NS``."""


def above(path: bytes) -> list[bytes]:
    """Returns the directories above a path, the root first."""
    if not path:
        return []
    names = path.split(b"/")
    return [b"/".join(names[:count]) for count in range(len(names))]


def is_within(path: bytes, top: bytes) -> bool:
    return path == top or not top or path.startswith(top + b"/")


def is_directory(item: RecordedPath | None) -> bool:
    return item is not None and S_ISDIR(item.mode)


def below(tree: TreeState, top: bytes) -> TreeState:
    """Returns a path and all below it."""
    return {path: item for path, item in tree.items() if is_within(path, top)}


def children(tree: TreeState, top: bytes) -> set[bytes]:
    return {path for path in tree if path and path.rpartition(b"/")[0] == top}


# ---------------------------------------------------------------------- moves


def find_moves(old: TreeState, new: TreeState) -> dict[bytes, bytes]:
    """Returns the directories that went elsewhere with at least half of their files."""

    def is_other(path: bytes) -> bool:
        one, other = old.get(path), new.get(path)
        return one is None or other is None or S_IFMT(one.mode) != S_IFMT(other.mode)

    gone = {path for path in old if is_other(path)}
    came = {path for path in new if is_other(path)}
    found: dict[bytes, bytes] = {}
    for source in sorted(filter(lambda path: is_directory(old[path]), gone), key=components):
        files = [path for path in below(old, source) if S_ISREG(old[path].mode)]
        votes: dict[bytes, int] = {}
        for target in filter(lambda path: is_directory(new[path]), came):
            count = 0
            for path in files:
                there = target + path[len(source) :]
                one, other = old[path], new.get(there)
                if other is None or there not in came or not S_ISREG(other.mode):
                    continue
                count += bool(one.content) and one.content == other.content
            if count:
                votes[target] = count
        if not votes:
            continue
        target = min(votes, key=lambda path: (-votes[path], path))
        known = [*found, *found.values()]
        if 2 * votes[target] >= len(files) and are_apart([source, target], known):
            found[source] = target
    return found


def components(path: bytes) -> list[bytes]:
    return path.split(b"/") if path else []


def are_apart(paths: Iterable[bytes], others: Iterable[bytes]) -> bool:
    pairs = [(path, other) for path in paths for other in others]
    return not any(is_within(one, other) or is_within(other, one) for one, other in pairs)


def can_move(tree: TreeState, source: bytes, target: bytes) -> bool:
    if not is_directory(tree.get(source)) or target in tree:
        return False
    return all(path not in tree or is_directory(tree[path]) for path in above(target))


def moved(tree: TreeState, source: bytes, target: bytes, like: list[TreeState]) -> TreeState:
    """Returns a tree with a directory elsewhere; directories above it are as in other trees."""

    def new_path(path: bytes) -> bytes:
        return target + path[len(source) :] if is_within(path, source) else path

    result = {}
    for path, item in tree.items():
        links = tuple(sorted(new_path(other) for other in item.links))
        result[new_path(path)] = replace(item, links=links)
    for path in above(target):
        if path not in result:
            result[path] = next(other[path] for other in like if path in other)
    return result


def aligned(
    sides: list[TreeState], wanted: list[bytes], rule: str
) -> tuple[list[TreeState], set[bytes]]:
    """Moves directories in mine, theirs and the base; returns what was moved to two places."""

    def moves_to(side: TreeState) -> dict[bytes, bytes]:
        return {
            source: target
            for source, target in find_moves(sides[2], side).items()
            if is_wanted(source, wanted) and is_wanted(target, wanted)
        }

    def move(moves: dict[int, tuple[bytes, bytes]]) -> None:
        if all(can_move(sides[number], *pair) for number, pair in moves.items()):
            whole = sides[:]
            for number, pair in moves.items():
                sides[number] = moved(sides[number], *pair, whole)

    here, there = moves_to(sides[0]), moves_to(sides[1])
    both = sorted(here.keys() & there.keys())
    for source in both:
        goal, other, side = here[source], there[source], 1
        if rule == "theirs":
            goal, other, side = other, goal, 0
        move({2: (source, goal)} | ({side: (other, goal)} if goal != other else {}))
    for source in sorted(here.keys() - there.keys()):
        move({1: (source, here[source]), 2: (source, here[source])})
    for source in sorted(there.keys() - here.keys()):
        if are_apart([source, there[source]], [*here, *here.values()]):
            move({0: (source, there[source]), 2: (source, there[source])})
    return sides, {source for source in both if here[source] != there[source]}


# ---------------------------------------------------------------------- texts


def merged_lines(base: Lines, mine: Lines, theirs: Lines) -> tuple[Lines, Lines | None]:
    """Returns the merge, and the same with marks if there is a conflict.

    Of lines that each occur once, and in the same order wherever they occur.
    """
    for side in (base, mine, theirs):
        assert len(set(side)) == len(side)
    stable = [line for line in base if line in mine and line in theirs]
    for side in (mine, theirs):
        assert [line for line in side if line in stable] == stable
    merged, marked, is_conflict = [], [], False
    for old, left, right in zip(
        *(between(side, stable) for side in (base, mine, theirs)), strict=True
    ):
        if left in (old, right):
            merged += right
            marked += right
        elif right == old:
            merged += left
            marked += left
        else:
            is_conflict = True
            whole = [line for line in [*left, *right] if line.endswith(b"\n")]
            end = b"\r\n" if whole and whole[0].endswith(b"\r\n") else b"\n"
            marked += marked_lines(left, right, end)
        merged += stable[:1]
        marked += stable[:1]
        stable = stable[1:]
    return merged, marked if is_conflict else None


def lines_of(text: bytes) -> Lines:
    *lines, rest = text.split(b"\n")
    return [line + b"\n" for line in lines] + [rest] * bool(rest)


def marked_lines(left: Lines, right: Lines, end: bytes) -> Lines:
    """Returns both sides between marks, and what they share at their ends outside of these."""
    if left and right and left[0] == right[0]:
        return [left[0], *marked_lines(left[1:], right[1:], end)]
    if left and right and left[-1] == right[-1]:
        return [*marked_lines(left[:-1], right[:-1], end), left[-1]]
    sides = [*ended(left, end), b"=======" + end, *ended(right, end)]
    return [b"<<<<<<<" + end, *sides, b">>>>>>>" + end]


def between(lines: Lines, stable: Lines) -> list[Lines]:
    """Returns what stands before, between and after some lines."""
    parts: list[Lines] = [[]]
    for line in lines:
        if line in stable:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def ended(lines: Lines, end: bytes) -> Lines:
    return [line if line.endswith(b"\n") else line + end for line in lines]


# ---------------------------------------------------------------------- paths


def is_wanted(path: bytes, wanted: list[bytes]) -> bool:
    return not wanted or any(is_within(path, top) for top in wanted)


def chosen(mine: object, theirs: object, base: object) -> tuple[bool, object]:
    """Returns whether a property is in conflict, and what becomes of it."""
    if theirs in (mine, base):
        return False, mine
    return mine != base, theirs


def same(one: TreeState, other: TreeState, top: bytes) -> bool:
    """Returns whether all at a path is alike, but for times, owners and links."""

    def essence(item: RecordedPath) -> RecordedPath:
        return replace(item, mtime_ns=0, uid=0, gid=0, links=())

    first, second = below(one, top), below(other, top)
    return first.keys() == second.keys() and all(
        essence(first[path]) == essence(second[path]) for path in first
    )


def equal(one: TreeState, other: TreeState, top: bytes) -> bool:
    """Returns whether all at a path is equal, but for links."""
    return {path: replace(item, links=()) for path, item in below(one, top).items()} == {
        path: replace(item, links=()) for path, item in below(other, top).items()
    }


class _Merging:
    def __init__(
        self, sides: list[TreeState], wanted: list[bytes], rule: str, labels: tuple[bytes, bytes]
    ) -> None:
        self.mine, self.theirs, self.base = sides
        self.wanted, self.rule, self.labels = wanted, rule, labels
        self.result = Merge({})

    def keep(self, side: TreeState, top: bytes) -> None:
        self.result.tree |= below(side, top)

    def conflict(self, path: bytes) -> TreeState:
        self.result.conflicts.add(path)
        return self.theirs if self.rule == "theirs" else self.mine

    def visit(self, path: bytes) -> None:
        """Decides on a path and all below it."""
        mine, theirs, base = (side.get(path) for side in (self.mine, self.theirs, self.base))
        names = {*children(self.mine, path), *children(self.theirs, path)}
        wanted = is_wanted(path, self.wanted)
        is_whole = wanted and path.rpartition(b"/")[2] in REPOSITORY_NAMES
        if not wanted and not any(is_within(top, path) for top in self.wanted):
            self.keep(self.mine, path)
        elif not wanted and mine is not None and not is_directory(mine):
            self.keep(self.mine, path)
            for top in self.wanted:
                is_changed = not equal(self.theirs, self.base, top)
                if is_within(top, path) and top in self.theirs and is_changed:
                    self.result.conflicts.add(path)
        elif is_directory(mine) and is_directory(theirs) and not is_whole:
            self.result.tree[path] = self.directory(path) if wanted else mine
            for name in names:
                self.visit(name)
        elif (
            all(item is None or is_directory(item) for item in (mine, theirs if wanted else None))
            and (not wanted or is_directory(base))
            and not is_whole
        ):
            for name in names:
                self.visit(name)
            is_empty = not children(self.result.tree, path)
            side = self.mine if mine is not None else self.theirs
            stays = mine is not None and (theirs == base or not wanted)
            if is_empty and wanted and not stays:
                here = replace(side[path], mtime_ns=0, uid=0, gid=0)
                if not is_directory(base) or here != replace(base, mtime_ns=0, uid=0, gid=0):
                    stays = path in self.conflict(path)
            if (not is_empty or stays) and path in side:
                self.result.tree[path] = side[path]
        elif wanted:
            self.whole(path)
        else:
            self.keep(self.mine, path)

    def whole(self, path: bytes) -> None:
        """Decides on what is not a directory on one side, or is a repository."""
        if equal(self.mine, self.base, path):
            self.keep(self.theirs, path)
        elif same(self.theirs, self.mine, path) or same(self.theirs, self.base, path):
            self.keep(self.mine, path)
        elif same(self.mine, self.base, path):
            self.keep(self.theirs, path)
        else:
            merged = self.leaf(path)
            if merged is None:
                self.keep(self.conflict(path), path)
                return
            self.result.tree[path] = merged
        if all(path in side for side in (self.mine, self.theirs)):
            self.result.tree[path] = self.with_rest(path, self.result.tree[path])

    def with_rest(self, path: bytes, item: RecordedPath) -> RecordedPath:
        """Returns an item with merged owner and time."""
        mine, theirs, base = self.mine[path], self.theirs[path], self.base.get(path)
        if is_directory(mine) and is_directory(theirs) and not is_directory(base):
            base = None
        owner = (mine.uid, mine.gid)
        if base is not None and owner == (base.uid, base.gid):
            owner = (theirs.uid, theirs.gid)
        time = item.mtime_ns
        if base is not None and time == base.mtime_ns:
            time = theirs.mtime_ns
        return replace(item, uid=owner[0], gid=owner[1], mtime_ns=time)

    def properties(self, path: bytes) -> RecordedPath | None:
        mine, theirs, base = self.mine[path], self.theirs[path], self.base.get(path)
        if base is None or S_IFMT(base.mode) != S_IFMT(mine.mode):
            equal = (S_IMODE(mine.mode), mine.xattrs) == (S_IMODE(theirs.mode), theirs.xattrs)
            return mine if equal else None
        is_conflict, mode = chosen(mine.mode, theirs.mode, base.mode)
        attributes = [dict(item.xattrs) for item in (mine, theirs, base)]
        merged = {}
        for name in {name for each in attributes for name in each}:
            is_other, merged[name] = chosen(*(each.get(name) for each in attributes))
            is_conflict |= is_other
        if is_conflict:
            return None
        found = tuple(sorted((name, value) for name, value in merged.items() if value is not None))
        return replace(mine, mode=mode, xattrs=found)

    def directory(self, path: bytes) -> RecordedPath:
        merged = self.properties(path)
        return self.conflict(path)[path] if merged is None else self.with_rest(path, merged)

    def leaf(self, path: bytes) -> RecordedPath | None:
        sides = [side.get(path) for side in (self.mine, self.theirs, self.base)]
        if any(item is None or is_directory(item) for item in sides):
            return None
        mine, theirs, base = sides
        if len({S_IFMT(item.mode) for item in sides}) > 1:
            return None
        result = self.properties(path)
        if result is None:
            return None
        is_conflict, content = chosen(mine.content, theirs.content, base.content)
        if not is_conflict:
            time = mine.mtime_ns if content == mine.content else theirs.mtime_ns
            return replace(result, content=content, mtime_ns=time)
        if not S_ISREG(mine.mode) or any(b"\0" in item.content for item in sides):
            return None
        texts = (lines_of(item.content) for item in (base, mine, theirs))
        merged, marked = merged_lines(*texts)
        if marked is not None and self.rule != "markers":
            return None
        if b"".join(merged) in (mine.content, theirs.content) and marked is None:
            one = mine if b"".join(merged) == mine.content else theirs
            return replace(result, content=one.content, mtime_ns=one.mtime_ns)
        self.result.merged_texts.add(path)
        if marked is not None:
            self.result.conflicts.add(path)
            marks = {
                mark + end: mark + b" " + label + end
                for mark, label in zip((b"<<<<<<<", b">>>>>>>"), self.labels, strict=True)
                for end in (b"\n", b"\r\n")
            }
            merged = [marks.get(line, line) for line in marked]
        return replace(result, content=b"".join(merged))

    def link(self) -> None:
        """Decides on each two paths whether they are one file, and on all that follows."""

        def is_one(tree: TreeState, pair: tuple[bytes, bytes]) -> bool:
            return all(path in tree for path in pair) and pair[1] in tree[pair[0]].links

        groups: dict[bytes, set[bytes]] = {}
        known = {path for tree in (self.mine, self.theirs) for path in tree if tree[path].links}
        for pair in combinations(sorted(known), 2):
            here, there, before = (
                is_one(tree, pair) for tree in (self.mine, self.theirs, self.base)
            )
            if not all(is_wanted(path, self.wanted) for path in pair):
                there = before = False
            if there if here == before else here:
                joined = groups.get(pair[0], {pair[0]}) | groups.get(pair[1], {pair[1]})
                groups.update(dict.fromkeys(joined, joined))
        tree = {path: replace(item, links=()) for path, item in self.result.tree.items()}
        for path in self.result.merged_texts:
            tree[path] = replace(tree[path], mtime_ns=MERGE_TIME_NS)
        for path, item in tree.items():
            alike = sorted(other for other in groups.get(path, ()) if tree.get(other) == item)
            links = tuple(alike) if len(alike) > 1 else ()
            self.result.tree[path] = replace(item, links=links)


def merged(
    mine: TreeState,
    theirs: TreeState,
    base: TreeState,
    *,
    wanted: Iterable[bytes] = (),
    rule: str = "refuse",
    labels: tuple[bytes, bytes] = (b"mine", b"theirs"),
) -> Merge:
    """Returns the merge of two trees that come from a base."""
    wanted = [path for path in wanted if path]
    sides, conflicts = aligned([mine, theirs, base], wanted, rule)
    merging = _Merging(sides, wanted, rule, labels)
    merging.visit(b"")
    merging.link()
    merging.result.conflicts |= conflicts
    return merging.result
