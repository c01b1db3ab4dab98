"""What a snapshot from elsewhere brings here: its files, and no privileges.

A *privilege* is a set-user-ID or set-group-ID bit, a device, an extended attribute that only
privileged programs set (such as file capabilities), or an owner. The maker of a snapshot chooses
them. So they are restored from a snapshot that is proven to be *own*, and left out of any other
one unless the user asks for them.

Own is a snapshot that this process captured, or that lies in a store of the user's own
(``ownership``) and that this store captured itself: not in a history that was
fetched, not brought by a clone, neither imported nor merged from such a one. Host, user and
path, which a snapshot says of itself, prove nothing.

What is left out is decided once, on the tree to go to, with the tree that is there beside it: where
the same kind of thing is there already, its owner stays, and its bits and attributes stay if the
content does. So a plan, a recovery and a comparison agree about what is wanted.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from stat import S_ISGID, S_ISUID

from treesnap.core.codec.tree import Put, put_tree
from treesnap.core.diff.trees import paired
from treesnap.core.fs.local import current_umask
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, Totals, Xattrs
from treesnap.core.model.errors import printable
from treesnap.core.model.reserved_tags import IMPORTED, RESERVED_TAGS
from treesnap.core.model.results import Privilege, Privileges
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotRecord
from treesnap.core.model.type_names import Any
from treesnap.core.ops.context import Session
from treesnap.core.ops.tree_state import (
    MemoryObjects,
    State,
    state_in,
    subset_groups,
    totals_of_entry,
)
from treesnap.core.store.roots import history_at
from treesnap.core.worktree.attributes import PRIVILEGED
from treesnap.core.worktree.scan.file_reader import store_xattrs

ELSEWHERE = f"{RESERVED_TAGS}elsewhere"
"""The tag of a snapshot that was made of one from elsewhere: the id of that one."""
MERGED = f"{RESERVED_TAGS}merged"
"""The tag of a merge of two machines' histories: the id of the snapshot of the other side."""
LISTED_MAX = 1000
"""How many privileges a result lists; the others it counts."""

_PLAIN_MAX = 1 << 16
"""How many trees are remembered: some 20 MB."""

_SET_IDS = S_ISUID | S_ISGID
_GROUP_BITS = 0o070
_ACCESS_LIST = b"system.posix_acl_access"
_Pairs = Iterator[tuple[Entry | None, Entry | None]]
DEVICES = frozenset({EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE})
_captured: deque[SnapshotId] = deque(maxlen=1024)
"""The newest snapshots that this process captured."""


def note_captured(identity: SnapshotId) -> None:
    """Notes that this process captured a snapshot."""
    _captured.append(identity)


def was_captured_here(snapshot: Snapshot) -> bool:
    """Returns whether this process captured a snapshot, as far as it remembers."""
    return snapshot.id in _captured


def is_own(session: Session, snapshot: Snapshot) -> bool:
    """Returns whether a snapshot is proven to be own. May cost a listing of all roots.

    One that was deleted since it was read is as much own as it was.
    """
    if was_captured_here(snapshot):
        return True
    tags = snapshot.record.tags
    if not session.store.is_own or not tags.keys().isdisjoint((IMPORTED, MERGED, ELSEWHERE)):
        return False
    if snapshot.root_id and _captured_in(session, snapshot.root_id, snapshot.sequence):
        return True
    return any(
        _captured_in(session, root_id, name.sequence)
        for root_id, name in session.store.snapshots.all_names()
        if name.id == snapshot.id
    )


def _captured_in(session: Session, root_id: str, sequence: int) -> bool:
    """Returns whether a snapshot of a root is one that the root captured."""
    root = session.store.root_by_id(root_id)
    is_known = root.record is not None and history_at(root.path) is None
    return is_known and sequence > root.last_from_elsewhere


def elsewhere_tags(session: Session, *sources: Snapshot) -> dict[str, str]:
    """Returns the tags of a snapshot that is made of others: none if all of these are own."""
    foreign = next((each for each in sources if not is_own(session, each)), None)
    return {ELSEWHERE: foreign.id} if foreign is not None else {}


class PrivilegeList:
    """Counts privileges, and lists the first ones."""

    def __init__(self) -> None:
        self._listed: list[Privilege] = []
        self._given = self._left_out = self._owners = 0

    def add(self, path: bytes, kind: str, *, given: bool) -> None:
        """Adds one."""
        self._given += given
        self._left_out += not given
        if len(self._listed) < LISTED_MAX:
            self._listed.append(Privilege(path, kind, given))

    def add_owner(self, count: int = 1) -> None:
        """Counts an owner that is left out, or several."""
        self._owners += count

    @property
    def counts(self) -> tuple[int, int]:
        """How many were added, and how many owners."""
        return self._given + self._left_out, self._owners

    def add_given(self, path: bytes, entry: Entry, attributes: Xattrs) -> None:
        """Adds those that a path gets, but for its owner."""
        for kind in kinds_of(entry):
            self.add(path, kind, given=True)
        for name, _ in attributes:
            if name.startswith(PRIVILEGED):
                self.add(path, printable(name), given=True)

    def result(self) -> Privileges:
        """Returns what was added."""
        return Privileges(tuple(self._listed), self._given, self._left_out, self._owners)


def kinds_of(entry: Entry) -> Iterator[str]:
    """Yields the privileges of an entry, except for its owner and its attributes."""
    if entry.kind in DEVICES:
        yield "device"
    if entry.is_skipped or entry.kind == EntryKind.SYMLINK:
        return
    if entry.mode & S_ISUID:
        yield "set-user-id"
    if entry.mode & S_ISGID:
        yield "set-group-id"


def wanted_state(
    session: Session,
    record: SnapshotRecord,
    scope: tuple[bytes, ...] | None,
    live: State | None,
    *,
    privileged: bool,
) -> tuple[State, Privileges]:
    """Returns the tree that a restore of a snapshot leads to, and what is left out of it.

    ``live`` is the tree that is there, or None where nothing is. Costs what :func:`limited` does
    unless it is ``privileged``.
    """
    objects = MemoryObjects(session.store)
    target = state_in(objects, session, record, scope)
    if privileged:
        return target, Privileges()
    return limited(objects.put, target, live)


def limited(put: Put, target: State, live: State | None) -> tuple[State, Privileges]:
    """Returns a tree to go to without privileges, beside the tree that is there, if any.

    Also returns what was left out. ``put`` takes the trees that this makes, so that the target's
    reader has them. Reads what differs between both, once; memory grows with the directories in
    which something is left out.
    """
    return _Limiter(put, target, live).run()


class _Directory:
    """A directory that is being walked."""

    def __init__(
        self, raw: Entry, entry: Entry, pairs: _Pairs, counts: tuple[int, int] | None
    ) -> None:
        self.raw = raw
        self.entry = entry
        self.pairs = pairs
        self.kept: list[Entry] = []
        self.totals = Totals()
        self.is_changed = False
        self.counts = counts
        """Counts of the list when this began; None where the result depends on what is there."""


class _Limiter:
    def __init__(self, put: Put, target: State, live: State | None) -> None:
        self._put = put
        self._target = target
        self._live = live
        self._trees = target.trees
        self._walk = target.trees.walk()
        self._owner = os.geteuid(), os.getegid()
        self._found = PrivilegeList()
        self._dropped: set[bytes] = set()
        self._plain: dict[ObjectId, tuple[ObjectId, int]] = {}
        """Trees of which nothing was there and in which only owners are left out.

        Each with the tree that became of it, and how many owners: one that a store names in
        very many places is gone through once.
        """

    def run(self) -> tuple[State, Privileges]:
        """Returns the new state, and what was left out."""
        root = self._tree(self._target.root, self._live.root if self._live is not None else None)
        groups = self._target.groups
        if self._dropped:
            groups = subset_groups(groups, lambda path: path not in self._dropped)
        return self._target._replace(root=root, groups=groups), self._found.result()

    def _tree(self, raw: Entry, live: Entry | None) -> Entry:
        """Goes through both trees side by side. Does not recurse, and keeps one path."""
        stack: list[_Directory] = []
        descent = treepath.Descent()
        done = self._entered(stack, treepath.ROOT, raw, live)
        while stack:
            directory = stack[-1]
            for mine, theirs in directory.pairs:
                if theirs is None:
                    continue
                path = treepath.join(descent.path, theirs.name)
                if theirs.is_directory:
                    made = self._entered(stack, path, theirs, mine)
                    if made is None:
                        descent.enter(path)
                        break
                else:
                    made = self._wanted(path, theirs, mine)
                self._keep(directory, theirs, made)
            else:
                stack.pop()
                descent.leave()
                done = self._finished(directory)
                if stack:
                    self._keep(stack[-1], directory.raw, done)
        assert done is not None
        return done

    def _entered(
        self, stack: list[_Directory], path: bytes, raw: Entry, live: Entry | None
    ) -> Entry | None:
        """Returns a directory of which nothing inside differs; begins to go through another one."""
        entry = self._wanted(path, raw, live)
        assert entry is not None
        if live is not None and live.is_directory and live.tree_id == raw.tree_id:
            return entry
        there: Iterable[Entry] = ()
        counts = None
        if live is None or not live.is_directory:
            plain = self._plain.get(raw.tree_id)
            if plain is not None:
                tree_id, owners = plain
                self._found.add_owner(owners)
                return entry if tree_id == raw.tree_id else entry._replace(content=tree_id)
            counts = self._found.counts
        if self._live is not None and live is not None and live.is_directory:
            there = self._live.trees.entries(live.tree_id)
        pairs = paired(there, self._walk.entries(raw.tree_id))
        stack.append(_Directory(raw, entry, pairs, counts))
        return None

    def _keep(self, directory: _Directory, raw: Entry, made: Entry | None) -> None:
        directory.is_changed |= made is not raw
        if made is None:
            return
        directory.kept.append(made)
        is_live = raw.kind in DEVICES and self._live is not None
        trees = self._live.trees if is_live and self._live is not None else self._trees
        directory.totals = directory.totals.plus(totals_of_entry(made, trees))

    def _finished(self, directory: _Directory) -> Entry:
        entry = directory.entry
        if directory.is_changed:
            tree_id = put_tree(directory.kept, directory.totals, self._put, self._trees.keep)
            entry = entry._replace(content=tree_id)
        if directory.counts is not None and len(self._plain) < _PLAIN_MAX:
            listed, owners = self._found.counts
            if listed == directory.counts[0]:
                self._plain[directory.raw.tree_id] = entry.tree_id, owners - directory.counts[1]
        return entry

    def _wanted(self, path: bytes, raw: Entry, live: Entry | None) -> Entry | None:
        """Returns what a restore makes of an entry; None if that is nothing. Ignores children."""
        if raw == live or raw.is_skipped:
            return raw
        if raw.kind in DEVICES:
            if path in self._target.groups:
                self._dropped.add(path)
            self._found.add(path, "device", given=False)
            return live
        there = live if live is not None and live.kind == raw.kind else None
        same = there
        if there is not None and raw.kind == EntryKind.FILE:
            same = there if (there.size, there.content) == (raw.size, raw.content) else None
        uid, gid = (there.uid, there.gid) if there is not None else self._owner
        if (uid, gid) != (raw.uid, raw.gid):
            self._found.add_owner()
        mode, xattrs = self._attributes(path, raw, same)
        if raw.kind != EntryKind.SYMLINK:
            mode = self._mode(path, raw, mode, same)
        if (mode, uid, gid, xattrs) == (raw.mode, raw.uid, raw.gid, raw.xattrs):
            return raw
        return raw._replace(mode=mode, uid=uid, gid=gid, xattrs=xattrs)

    def _mode(self, path: bytes, raw: Entry, mode: int, same: Entry | None) -> int:
        """Returns the mode without bits that are not there already; of a new root less the umask.

        The maker of a directory that is to be the root chose who may look into it.
        """
        if not path:
            mode &= ~(current_umask() & 0o077) if same is None else same.mode | ~0o777
        given = mode & _SET_IDS & (same.mode if same is not None else 0)
        for kind in kinds_of(raw._replace(mode=mode & _SET_IDS & ~given)):
            self._found.add(path, kind, given=False)
        return mode & ~_SET_IDS | given

    def _attributes(self, path: bytes, raw: Entry, same: Entry | None) -> tuple[int, Any]:
        """Returns mode and attributes; of the privileged attributes only those there already.

        The group's bits of a file with an access control list are the mask of that list, and say
        nothing without it.
        """
        if raw.xattrs is None or (same is not None and same.xattrs == raw.xattrs):
            return raw.mode, raw.xattrs
        pairs = self._trees.xattrs(raw)
        rest = tuple(pair for pair in pairs if not pair[0].startswith(PRIVILEGED))
        if rest == pairs:
            return raw.mode, raw.xattrs
        there = self._live.trees.xattrs(same) if same is not None and self._live is not None else ()
        names = {name for name, _ in pairs if name.startswith(PRIVILEGED)}
        kept = [pair for pair in there if pair[0] in names]
        left = [pair[0] for pair in pairs if pair[0] in names and pair not in kept]
        for name in left:
            self._found.add(path, printable(name), given=False)
        mode = raw.mode
        if _ACCESS_LIST in left:
            mode = mode & ~_GROUP_BITS | (same.mode & _GROUP_BITS if same is not None else 0)
        return mode, store_xattrs(tuple(sorted((*rest, *kept))), self._put)
