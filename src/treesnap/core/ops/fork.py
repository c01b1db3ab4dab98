"""``fork``: working copies of a snapshot, which share their blocks with the live tree.

For each directory:

    record in the store of the origin where the files will be built, and lock the record
    build beside the directory     files are cloned from the live tree, or from the first fork,
                                   as far as these still are what was captured; others are built
                                   from the store
    sync, and let the clock go on
    register the new root, publish its base, pin that, write its stat cache
    rename the tree to the directory    the commit point
    remove the record

So a directory appears whole, with a history that begins with what it holds, and with a stat cache:
its next capture reads no file. What a killed fork leaves is removed by the next operation in the
origin that writes: the tree, and the root that it would have been.

No lock of the origin is held while files are built, so its snapshot may be deleted meanwhile. It
is held while the base is published.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from treesnap.core.codec.reader import TreeReader, read_content, read_segments
from treesnap.core.codec.tree import Put, put_tree
from treesnap.core.fs.durable import read_file, replace_file
from treesnap.core.fs.mounts import PRECISE_GRANULARITY_NS, Mounts, has_whole_seconds
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StorageFull,
    StoreMissing,
    TreesnapError,
    WarningCode,
    quoted,
)
from treesnap.core.model.quantities import count_text, first_few, size_text
from treesnap.core.model.reserved_tags import fork_tags
from treesnap.core.model.results import Fork, ForkOrigin, ForkResult, Privileges
from treesnap.core.model.snapshots import IgnoreRules, Snapshot, SnapshotKind, SnapshotRecord
from treesnap.core.ops.access import opened
from treesnap.core.ops.capture import usable_cache
from treesnap.core.ops.context import Context, Session, absolute, is_worktree
from treesnap.core.ops.history.browse import walk
from treesnap.core.ops.maintenance.space import with_settings
from treesnap.core.ops.origin import BASE_NAME, origin_in
from treesnap.core.ops.privileges import is_own, limited
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.restore.export import Export, is_fixed, refuse_occupied
from treesnap.core.ops.tree_state import MemoryObjects, State
from treesnap.core.ops.trust import real_target, refuse_foreign_place
from treesnap.core.store.roots import Root
from treesnap.core.store.writer import Writer, retry_overtaken
from treesnap.core.worktree.apply.clones import CloneSource, ForkBuild, can_share
from treesnap.core.worktree.scan.hard_links import load_groups, store_groups
from treesnap.core.worktree.scan.ignore import (
    IGNORE_FILE,
    IGNORE_FILE_SIZE_MAX,
    Exclusions,
    parse_ignore_file,
)
from treesnap.core.worktree.scan.mapped_files import mapped_now
from treesnap.core.worktree.scan.statcache import StatCacheBuilder, load

_SETTINGS_SIZE_MAX = 1 << 20


def fork(context: Context, ref: str, directories: Sequence[str]) -> ForkResult:
    """Makes working copies of a snapshot; see :meth:`treesnap.Handle.fork`."""
    if not directories:
        raise InvalidArgument("directories must name a directory at least")
    with opened(context, "fork", writing=True) as session:
        snapshot = resolve_in(session, ref)
        if session.store.snapshots.listing(session.root.id).find(snapshot.id) is None:
            raise NotFound(
                f"Snapshot {snapshot.id[:12]} is of another history", code=ErrorCode.OTHER_ROOT
            )
        if snapshot.record.scope is not None:
            raise InvalidArgument(
                f"Snapshot {snapshot.id[:12]} holds only some paths, and a fork is of the whole "
                "root"
            )
        places = _places(session, directories)
        with reading(session, snapshot):
            return _Forking(session, snapshot).make(places)


def origin(context: Context) -> ForkOrigin | None:
    """Returns where the root was forked from, or None if it is not a fork."""
    try:
        with opened(context, "look at the history") as session:
            return origin_in(session.store, session.root)
    except StoreMissing:
        return None


def _places(session: Session, directories: Sequence[str]) -> list[str]:
    """Returns real paths for the forks; raises Refused where one cannot be, before any is made."""
    places: list[str] = []
    for directory in directories:
        if not directory or "\0" in directory:
            raise InvalidArgument("A directory of a fork must be a path", path=directory)
        path = os.path.abspath(absolute(directory))
        target = os.path.join(real_target(os.path.dirname(path)), os.path.basename(path))
        _refuse(session, target)
        refuse_foreign_place("fork", target)
        if target in places:
            raise InvalidArgument(f"{quoted(target)} is named twice", path=target)
        places.append(target)
    return places


def _refuse(session: Session, place: str) -> None:
    context = session.context
    store = os.path.realpath(context.store_path)
    what = f"The fork {quoted(place)}"
    reasons = {
        f"{what} would be inside the directory that is forked": _is_in(place, context.root),
        f"{what} would hold the directory that is forked": _is_below(context.root, place),
        f"{what} would be inside the store": _is_in(place, store),
        f"{what} would hold the store": _is_below(store, place),
        f"There is no directory {quoted(os.path.dirname(place))} for the fork": not os.path.isdir(
            os.path.dirname(place)
        ),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise Refused(reason, code=ErrorCode.NOT_FORKABLE, path=place)
    refuse_occupied(place)
    if is_fixed(session.fs, place):
        raise Refused(
            f"{what} would be a mount point, to which nothing can be renamed",
            code=ErrorCode.NOT_FORKABLE,
            path=place,
        )
    root = session.store.root(os.fsencode(place))
    if root.is_registered() or session.store.snapshots.names(root.id):
        raise _taken(place)


def _taken(place: str | bytes) -> Refused:
    return Refused(
        f"The store has a history of {quoted(place)} already",
        code=ErrorCode.ROOT_TAKEN,
        path=place,
    )


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip(os.sep) + os.sep)


def _is_in(path: str, directory: str) -> bool:
    """Returns whether a path lies in a directory, also where a bind mount shows that elsewhere."""
    if _is_below(path, directory):
        return True
    above = [os.path.dirname(path)]
    while above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    with suppress(FileNotFoundError):  # the directory: the live tree need not be there
        status = os.stat(directory)
        return any(os.path.exists(it) and os.path.samestat(os.stat(it), status) for it in above)
    return False


class _RulesInForce:
    """The exclusions in force in each directory of a tree that lies in the store.

    Only where a capture found rules is an ignore file looked for.
    """

    def __init__(
        self, state: State, rules: tuple[IgnoreRules, ...], candidates: set[bytes], session: Session
    ) -> None:
        self._root = Exclusions(rules)
        self._files: dict[bytes, IgnoreRules] = {}
        for directory in candidates:
            entry = state.entry(treepath.join(directory, IGNORE_FILE))
            if entry is None or entry.kind != EntryKind.FILE or entry.size > IGNORE_FILE_SIZE_MAX:
                continue
            data = b"".join(read_content(entry.file_content, session.store.get))
            rule, _ = parse_ignore_file(directory, data)
            if rule.patterns:
                self._files[directory] = rule
        self._in_force: dict[bytes, Exclusions] = {}

    def above(self, path: bytes) -> Exclusions:
        """Returns those of the directory above a path."""
        if not path or not (self._files or self._root.at(treepath.ROOT)):
            return self._root
        directory = treepath.split(path)[0]
        exclusions = self._in_force.get(directory)
        if exclusions is None:
            exclusions = self.above(directory).at(directory)
            rule = self._files.get(directory)
            if rule is not None:
                exclusions = exclusions.entering(rule)
            self._in_force[directory] = exclusions
        return exclusions


class _Forking:
    """The forks of one snapshot."""

    def __init__(self, session: Session, snapshot: Snapshot) -> None:
        self._session = session
        self._fs = session.fs
        self._snapshot = snapshot
        record = snapshot.record
        self._new_objects: list[tuple[ObjectKind, bytes]] = []
        objects = MemoryObjects(session.store)
        trees = objects.trees()

        def put(kind: ObjectKind, data: bytes) -> ObjectId:
            self._new_objects.append((kind, data))
            return objects.put(kind, data)

        root = _without_skipped(record.root, trees, put)
        state = State(root, trees, load_groups(record.links, session.store.get))
        self._privileges = Privileges()
        if not is_own(session, snapshot):
            state, self._privileges = limited(put, state, None)
        self._state = state
        rules = with_settings(session).rules
        candidates = {rule.directory for rule in record.rules}
        self._rules = _RulesInForce(self._state, rules, candidates, session)

    def make(self, places: Sequence[str]) -> ForkResult:
        """Makes the forks, one after the other."""
        self._refuse_without_room(places)
        totals = self._state.trees.totals(self._state.root.tree_id)
        forks: list[Fork] = []
        with ExitStack() as stack:
            origin = self._origin_source(stack)
            first: CloneSource | None = None
            for place in places:
                sources = [source for source in (first, origin) if source is not None]
                try:
                    forks.append(self._make(place, sources))
                except (OSError, TreesnapError):
                    self._warn_of_made(forks)
                    raise
                if first is None and len(forks) < len(places):
                    first = self._fork_source(stack, place)
        self._warn_of_shared(forks)
        return ForkResult(
            self._snapshot.id, totals.files, totals.size_bytes, tuple(forks), self._privileges
        )

    def _warn_of_made(self, forks: Sequence[Fork]) -> None:
        """Warns which forks exist although a later one failed; each of them is complete."""
        if forks:
            named = first_few(forks, lambda made: quoted(made.path))
            self._session.context.monitor.warn(
                WarningCode.FORKS_MADE, f"{count_text(len(forks), 'fork')} made before: {named}"
            )

    def _warn_of_shared(self, forks: Sequence[Fork]) -> None:
        """Warns of forks of a working tree: its file ``.git`` names one repository for all."""
        if is_worktree(os.fsdecode(forks[0].path)):
            named = first_few(forks, lambda made: quoted(made.path))
            self._session.context.monitor.warn(
                WarningCode.REPOSITORY_SHARED,
                f"git in {named} works on the branch and the index of the working tree that was "
                "forked",
            )

    def _origin_source(self, stack: ExitStack) -> CloneSource | None:
        """Returns the live tree to clone from, or None where nothing is known of it."""
        session, root = self._session, self._session.context.root
        cache = usable_cache(session)
        if cache is None:
            return None
        try:
            mapped = mapped_now(self._fs, root).inodes
            root_fd = stack.enter_context(opened_real(self._fs, root))
        except OSError:
            return None
        source = CloneSource(self._fs, root_fd, cache, self._state.trees, mapped)
        stack.callback(source.close)
        return source

    def _fork_source(self, stack: ExitStack, place: str) -> CloneSource | None:
        """Returns the first fork to clone from, or None where its stat cache cannot be read."""
        cache = load(self._fs, self._session.store.root(os.fsencode(place)).file("cache"))
        if cache is None:
            return None
        root_fd = stack.enter_context(opened_real(self._fs, place))
        source = CloneSource(self._fs, root_fd, cache, self._state.trees)
        stack.callback(source.close)
        return source

    def _make(self, place: str, sources: Sequence[CloneSource]) -> Fork:
        session, state = self._session, self._state
        path = os.fsencode(place)
        builder = StatCacheBuilder(self._fs, session.store.layout.temporary, None)
        step_ns = Mounts(self._fs).granularity_ns(os.path.dirname(place))
        build = ForkBuild(
            self._fs,
            sources,
            state.trees,
            builder,
            self._rules.above,
            is_linked=bool(state.groups),
        )
        published: list[tuple[Root, Snapshot]] = []

        def publish(whole_fd: int) -> None:
            build.observe(whole_fd, state.root)
            is_coarse = has_whole_seconds(self._fs.fstat(whole_fd).st_ctime_ns)
            has_cache = step_ns <= PRECISE_GRANULARITY_NS and not is_coarse
            if has_cache:
                time.sleep(step_ns / 1e9)  # so that a change from now on has another time
            published.append(self._publish(export, path, builder if has_cache else None))

        export = Export(session, state, fork=path, participant=build, before_rename=publish)
        try:
            export.write(place)
        finally:
            builder.discard()
        ((root, base),) = published
        with (
            suppress(OSError, TreesnapError),  # only a later move might go unnoticed
            root.locked("fork", session.context.wait_s),
        ):
            root.note_identity()
        return Fork(path, root.id, base.id, *build.counts)

    def _publish(
        self, export: Export, path: bytes, builder: StatCacheBuilder | None
    ) -> tuple[Root, Snapshot]:
        """Registers the root at a path and publishes its base, pinned; then its stat cache.

        The root stays locked until the tree is there. Raises Refused where another process has
        made a fork there meanwhile.
        """
        session = self._session
        store, origin = session.store, session.root
        with origin.locked("fork", session.context.wait_s):
            if store.snapshots.listing(origin.id).find(self._snapshot.id) is None:
                raise NotFound(f"Snapshot {self._snapshot.id[:12]} was deleted meanwhile")
            root = store.root(path)
            export.owns_root = not root.is_registered()
            root.register()
            export.root_lock.enter_context(root.locked("fork", session.context.wait_s))
            export.owns_root = not store.snapshots.names(root.id)
            if not export.owns_root:
                raise _taken(path)
            self._copy_settings(root)
            base = retry_overtaken("the fork", lambda _: self._publish_base(root))
            store.snapshots.change_state(base.id, lambda state: state._replace(pinned=True))
            if builder is not None:
                with suppress(OSError):  # then the next capture reads all files
                    tree_id = base.record.root.tree_id
                    builder.publish(root.file("cache"), base.id, tree_id)
        return root, base

    def _copy_settings(self, root: Root) -> None:
        """Copies the settings of the origin to a fork, in particular its exclusions."""
        with suppress(FileNotFoundError):
            data = read_file(self._fs, self._session.root.file("config.toml"), _SETTINGS_SIZE_MAX)
            temporary = self._session.store.layout.temporary
            replace_file(self._fs, root.file("config.toml"), data, temporary=temporary)

    def _publish_base(self, root: Root) -> Snapshot:
        store, record = self._session.store, self._snapshot.record
        with Writer(store) as writer:
            for kind, data in self._new_objects:
                writer.put(kind, data)
            base = SnapshotRecord(
                root=self._state.root,
                links=store_groups(set(self._state.groups.values()), writer.put),
                root_path=root.path,
                created_at_ns=self._session.context.clock_ns(),
                totals=self._state.trees.totals(self._state.root.tree_id),
                kind=SnapshotKind.MANUAL,
                rules=record.rules,
                unstable=record.unstable,
                host=os.uname().nodename,
                name=BASE_NAME,
                label=f"fork of {self._snapshot.id[:12]}",
                tags=fork_tags(self._session.root.id, self._snapshot.id),
            )
            sequence = store.snapshots.listing(root.id).next_sequence
            _, name = writer.publish(base, root.id, sequence)
        return store.snapshots.load(root.id, name)

    def _refuse_without_room(self, places: Sequence[str]) -> None:
        """Raises StorageFull where blocks cannot be shared, and there is no room for the copies."""
        above: dict[int, list[str]] = {}
        for place in places:
            directory = os.path.dirname(place)
            above.setdefault(self._fs.lstat(directory).st_dev, []).append(directory)
        for directories in above.values():
            directory = directories[0]
            if can_share(self._fs, self._session.context.root, directory):
                continue
            copies = 1 if can_share(self._fs, directory, directory) else len(directories)
            with opened_real(self._fs, directory) as fd:
                free = self._fs.free_bytes(fd)
            size = self._state.trees.totals(self._state.root.tree_id).size_bytes
            if copies * size <= free:
                continue
            size = self._data_bytes()  # without holes
            if copies * size > free:
                raise StorageFull(
                    f"{quoted(directory)} has room for {size_text(free)}, and the files take "
                    f"{size_text(copies * size)}: blocks cannot be shared there",
                    path=directory,
                )

    def _data_bytes(self) -> int:
        """Returns the bytes of all files without their holes; each hard link counts once."""
        total = 0
        trees, groups = self._state.trees, self._state.groups
        for path, entry in walk(trees, self._state.root, treepath.ROOT):
            if entry.kind == EntryKind.FILE and groups.get(path, (path,))[0] == path:
                content = entry.file_content
                total += len(content.data or b"")
                segments = read_segments(content, self._session.store.get)
                total += sum(each.size for each in segments if each.id is not None)
        return total


def _without_skipped(root: Entry, trees: TreeReader, put: Put) -> Entry:
    """Returns a directory without what its capture left out, which a fork does not hold.

    Costs as much as the directories that have something like it below them, each once.
    """
    made: dict[ObjectId, ObjectId] = {}
    stack: list[tuple[Entry, Iterator[Entry], list[Entry]]] = []
    done: Entry | None = None

    def enter(directory: Entry) -> Entry | None:
        """Returns a directory that may stay as it is; otherwise begins another one."""
        tree_id = made.get(directory.tree_id)
        if tree_id is not None:
            return directory._replace(content=tree_id)
        if not trees.totals(directory.tree_id).skipped:
            return directory
        stack.append((directory, trees.entries(directory.tree_id), []))
        return None

    done = enter(root)
    while stack:
        directory, rest, kept = stack[-1]
        for entry in rest:
            if entry.is_skipped:
                continue
            same = enter(entry) if entry.is_directory else entry
            if same is None:
                break
            kept.append(same)
        else:
            stack.pop()
            totals = trees.totals(directory.tree_id)._replace(skipped=0, incomplete=0)
            done = directory._replace(content=put_tree(kept, totals, put, trees.keep))
            made[directory.tree_id] = done.tree_id
            if stack:
                stack[-1][2].append(done)
    assert done is not None
    return done
