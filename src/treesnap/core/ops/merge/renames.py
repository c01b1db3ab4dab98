"""Directories that were moved between two states of a tree, told by the files that went along.

Nothing records a move. A directory counts as moved when it is gone, and at least half of its files
lie in one directory that was not there before, under the same names and with the same bytes. What
a state skipped counts as not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from treesnap.core.codec.reader import TreeReader
from treesnap.core.diff.trees import differing
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectId
from treesnap.core.model.path_budget import PathBudget

Moves = dict[bytes, bytes]
"""Where directories went, by where they were. None lies in another one."""


def find_moves(trees: TreeReader, old: Entry, new: Entry, budget: PathBudget) -> Moves:
    """Returns the directories that were moved. Reads all trees that differ, and no file.

    Raises OperationFailed for more paths that differ than the budget has room for.
    """
    if old.tree_id == new.tree_id:
        return {}
    gone: dict[bytes, Entry] = {}
    came: dict[bytes, Entry] = {}

    def known(tree_id: ObjectId) -> Iterator[Entry]:
        return (entry for entry in trees.entries(tree_id) if not entry.is_skipped)

    for path, before, after in differing(old, new, known, known):
        budget.hold(path)
        if before is not None and (after is None or before.kind != after.kind):
            gone[path] = before
        if after is not None and (before is None or before.kind != after.kind):
            came[path] = after
    places: dict[tuple[object, bytes], list[bytes]] = {}
    for path, entry in came.items():
        if entry.kind == EntryKind.FILE and entry.size:
            places.setdefault((entry.content, treepath.split(path)[1]), []).append(path)
    votes: dict[bytes, Counter[bytes]] = {}
    for path, entry in gone.items():
        if entry.kind == EntryKind.FILE:
            for place in places.get((entry.content, treepath.split(path)[1]), ()):
                for source, target in _pairs(path, place, gone, came):
                    votes.setdefault(source, Counter())[target] += 1
    moves: Moves = {}
    for source in sorted(votes, key=treepath.components):
        target, count = min(votes[source].items(), key=lambda item: (-item[1], item[0]))
        taken = [*moves, *moves.values()]
        files = trees.totals(gone[source].tree_id).files
        if 2 * count >= files and not _touches([source, target], taken):
            moves[source] = target
    return moves


def _pairs(
    path: bytes, place: bytes, gone: Mapping[bytes, Entry], came: Mapping[bytes, Entry]
) -> Iterable[tuple[bytes, bytes]]:
    """Yields the directories above two paths in which both have the same name."""
    source, target = treepath.split(path)[0], treepath.split(place)[0]
    while source in gone and target in came:
        yield source, target
        (source, name), (target, other) = treepath.split(source), treepath.split(target)
        if name != other:
            return


def _touches(paths: Iterable[bytes], others: Sequence[bytes]) -> bool:
    return any(
        treepath.is_within(path, other) or treepath.is_within(other, path)
        for path in paths
        for other in others
    )


def are_apart(moves: Moves, others: Moves) -> bool:
    """Returns whether no directory of some moves lies in, or holds, one of other moves."""
    return not _touches([*moves, *moves.values()], [*others, *others.values()])


def moved(path: bytes, moves: Moves) -> bytes:
    """Returns where a path is after moves."""
    for source, target in moves.items():
        if treepath.is_within(path, source):
            return target + path[len(source) :]
    return path


def can_move(trees: TreeReader, root: Entry, source: bytes, target: bytes) -> bool:
    """Returns whether a tree has the directory, and room for it where it goes."""
    entry = trees.find(root, source)
    if entry is None or not entry.is_directory or trees.find(root, target) is not None:
        return False
    above = (trees.find(root, path) for path in treepath.parents(target))
    return all(entry is None or entry.is_directory for entry in above)
