"""Captures a large tree of which nothing is known in several processes.

After the first names, what is left is divided: directories are listed, and no name is looked at.
Then each process captures whole directories, one after the other, in a session of its own. This
process captures what is above them as well, and stores its trees last.

A helper reports what each directory became, and at last, when everything that it stored is
durable, the rest: rows, hard links, names that were left out. Only then what it did counts, and
only as a whole; otherwise this process does it again. So the division is a hint, and a helper may
fail in any way: the result is that of one process.

Two processes that meet the same content at the same time both store it. No object is stored more
often than there are processes, and a collection keeps one of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.forked import Work, helper_count, share_out
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, Skipped, SkipReason, Totals
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import Monitor, NullMonitor
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.core.model.type_names import Any, Protocol, Self
from treesnap.core.worktree.directory import DirectoryChain
from treesnap.core.worktree.scan.file_reader import ObjectSink, blames_file
from treesnap.core.worktree.scan.ignore import Exclusions
from treesnap.core.worktree.scan.listing import count_names
from treesnap.core.worktree.scan.scanner import Directory, Scanner, ScanSettings, Stored, Visit
from treesnap.core.worktree.scan.statcache import RowGatherer, StatCacheBuilder

FILES_MIN = 20_000
"""Names from which on helpers capture: starting one takes tens of milliseconds."""
_ALONE_COUNT = 1024
"""Names after which what is left is counted, so that small trees cost nothing more."""
_ITEMS_MIN = 64
_WEIGHT_MAX = 2048
"""Names of a work item, if possible; more would let one process work while the others are done."""
_DEPTH_MAX = 64
"""Below this depth nothing is divided."""
_Result = tuple[tuple[int, ...], tuple[Any, ...], tuple[int, ...]] | None
"""What was observed of a directory before it was captured, its entry without the kind, and its
totals; None when it cannot be entered."""


class SharedSink(ObjectSink, Protocol):
    """Where captured objects go that several processes store."""

    def pause(self) -> None:
        """Ends all threads, so that this process can be forked."""

    def of_helper(self) -> Self:
        """Returns the sink of this process, a helper."""

    def finish(self) -> Any:
        """Makes everything durable; returns what :meth:`take` needs, as marshal can write it."""

    def take(self, finished: Any) -> None:
        """Takes over what a helper stored."""


class ParallelScanner(Scanner):
    """Walks a root of which nothing is known; if it is large, several processes do."""

    def __init__(
        self,
        fs: FileSystem,
        settings: ScanSettings,
        sink: SharedSink,
        monitor: Monitor,
        builder: StatCacheBuilder | None,
    ) -> None:
        super().__init__(fs, settings, sink, monitor, None, builder)
        self._shared = sink

    def walk(self, chain: DirectoryChain, root_fd: int) -> tuple[Entry, Totals]:
        """Walks the open root and returns its entry and totals; raises OSError.

        After the first names, lists what is left once more, and shares it out if it is much.
        """
        root = self.enter_root(root_fd)
        stack, names, count = [root], list[bytes](), root.name_count
        stored: Stored | None = None
        while stored is None and count < _ALONE_COUNT:
            depth = len(stack)
            stored = self.step(chain, stack, names)
            count += stack[-1].name_count if len(stack) > depth else 0
        division = _divide(self, stack, root_fd) if stored is None else None
        if division is not None:
            self._shared.pause()
            capture = _SharedCapture(self, self._shared, chain, root_fd, division)
            stored = capture.run(stack, helper_count())
        while stored is None:
            stored = self.step(chain, stack, names)
        return root.entry(stored.tree_id), stored.totals


class _Subtree(NamedTuple):
    """A directory to capture with everything below it."""

    path: bytes
    weight: int
    exclusions: Exclusions
    """What is excluded in the directory above it."""


class _Division(NamedTuple):
    """How a tree is divided."""

    items: list[_Subtree]
    opened: frozenset[bytes]
    """The directories above the items, without the root."""
    weight: int


class _Node:
    """A directory that was counted."""

    __slots__ = ("above", "exclusions", "is_opened", "own", "path", "weight")

    def __init__(self, path: bytes, above: _Node | None, exclusions: Exclusions) -> None:
        self.path = path
        self.above = above
        self.exclusions = exclusions
        """What is excluded in it; before it is counted, what is excluded in the one above."""
        self.own = 0
        """How many names it has."""
        self.weight = 0
        """How many names there are in it and below."""
        self.is_opened = above is None


def _divide(walk: Scanner, stack: list[Directory], root_fd: int) -> _Division | None:
    """Returns how what is left of a walk is shared out, or None when it is too little.

    Raises nothing for what cannot be listed: the walk meets it again.
    """
    nodes = list(_count(walk, stack, root_fd))
    for node in reversed(nodes):
        node.weight += node.own
        if node.above is not None:
            node.above.weight += node.weight
    total = sum(node.weight for node in nodes if node.above is None)
    in_force = {id(node.exclusions): node.exclusions for node in nodes}.values()
    rules = {rule for exclusions in in_force for rule in exclusions.rules}
    if total < FILES_MIN or not walk.have_room(rules):
        return None
    weight_max = min(total // _ITEMS_MIN, _WEIGHT_MAX)
    items: list[_Subtree] = []
    for node in nodes:
        if node.above is not None and node.above.is_opened:
            node.is_opened = node.weight > weight_max >= node.own
            if not node.is_opened:
                items.append(_Subtree(node.path, node.weight, node.above.exclusions))
    return _Division(items, frozenset(node.path for node in nodes if node.is_opened), total)


def _count(walk: Scanner, stack: list[Directory], root_fd: int) -> Iterator[_Node]:
    """Yields directories with the number of their own names, each after the one above it.

    First come those of the stack, without their names, because they were entered.
    """
    fs, mounts, points = walk.fs, walk.mounts, walk.mount_points
    device = fs.fstat(root_fd).st_dev
    pending: list[_Node] = []

    def add(above: _Node, names: Iterable[bytes]) -> None:
        paths = [treepath.join(above.path, name) for name in names]
        pending.extend(_Node(path, above, above.exclusions) for path in paths if path not in points)

    for directory in stack:
        node = _Node(directory.path, None, directory.exclusions)
        yield node
        add(node, directory.subdirectories)
    with DirectoryChain(fs, root_fd) as chain:
        while pending:
            node = pending.pop()
            names = treepath.components(node.path)
            try:
                fd = chain.open_names(names)
                stat = fs.fstat(fd)
                other_device = stat.st_dev != device
                if (stat.st_dev, stat.st_ino) in walk.settings.store or mounts.crosses(
                    node.path, points, other_device=other_device
                ):
                    continue
                node.own, below, node.exclusions = count_names(fs, fd, node.path, node.exclusions)
            except OSError:
                continue
            yield node
            if len(names) < _DEPTH_MAX:
                add(node, below)


class _Counting(NullMonitor):
    """Keeps the progress and the warnings of a helper."""

    def __init__(self) -> None:
        self.files = self.size_bytes = 0
        self.warnings: list[tuple[str, str]] = []

    def advance(self, files: int, size_bytes: int) -> None:
        self.files += files
        self.size_bytes += size_bytes

    def warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append((code.value, message))


class _SharedCapture:
    """The capture of one tree, in this process and, after a fork, in each helper."""

    def __init__(
        self,
        walk: Scanner,
        sink: SharedSink,
        chain: DirectoryChain,
        root_fd: int,
        division: _Division,
    ) -> None:
        self._walk = walk
        self._sink = sink
        self._chain = chain
        self._root_fd = root_fd
        self._above = _Subtree(b"", division.weight, Exclusions())
        """The directories above all work items. The heaviest, so this process does them."""
        self._items = {item.path: item for item in division.items}
        self._to_open = division.opened
        self._is_helper = False

        self._opened: dict[bytes, Directory] = {}
        """The directories above all items, each after the one above it."""
        self._met: set[bytes] = set()
        """The items that were found in them."""

    def run(self, stack: list[Directory], helpers: int) -> Stored:
        """Returns what the first of the stack becomes, when the rest of the walk is done."""
        self._stack = stack
        share_out(
            [self._above, *self._items.values()],
            lambda item: item.weight,
            helpers,
            Work(
                here=self._capture,
                there=self._help,
                take=self._take,
                again=self._capture,
                finish=self._finish,
                accept=self._accept,
            ),
        )
        for path, directory in reversed(self._opened.items()):
            stored = directory.leave()
            if path:
                self._directory_above(path).add_child(directory, stored)
        return stored

    def _directory_above(self, path: bytes) -> Directory:
        return self._opened[treepath.split(path)[0]]

    def _capture(self, item: _Subtree) -> None:
        """Captures an item in this process, or does nothing where it is left out or gone."""
        if item is self._above:
            self._open_all()
        elif item.path in self._met:
            above, names = self._directory_above(item.path), treepath.components(item.path)
            below = above.descend(self._chain, names)
            if below is not None:
                above.add_child(below, self._walk.finish(self._chain, below, names))

    def _open_all(self) -> None:
        """Captures what is above the items."""
        pending = self._stack[::-1]
        while pending:
            directory = pending.pop()
            self._opened[directory.path] = directory
            for name in directory.subdirectories:
                path = treepath.join(directory.path, name)
                if path in self._items:
                    self._met.add(path)
                    continue
                names = treepath.components(path)
                below = directory.descend(self._chain, names)
                if below is not None and path in self._to_open:
                    pending.append(below)
                elif below is not None:
                    directory.add_child(below, self._walk.finish(self._chain, below, names))

    def _help(self, item: _Subtree) -> _Result:
        """Captures an item in a helper."""
        if not self._is_helper:
            self._is_helper = True
            self._sink = self._sink.of_helper()
            self._rows, self._monitor = RowGatherer(self._walk.fs), _Counting()
            settings = self._walk.settings
            known = settings.known._replace(mapped=self._walk.mapped)
            settings = settings._replace(known=known)
            self._walk = Scanner(
                self._walk.fs, settings, self._sink, self._monitor, None, self._rows
            )
            self._chain = DirectoryChain(self._walk.fs, self._root_fd)
        try:
            name = treepath.split(item.path)[1]
            visit = Visit(item.path, name, item.exclusions)
            directory = self._walk.enter(self._chain.open(item.path), visit)
        except OSError as error:
            if not blames_file(error):
                raise
            return None
        stored = self._walk.finish(self._chain, directory, treepath.components(item.path))
        name, _, *fields = directory.entry(stored.tree_id)
        return directory.observed, (name, *fields), tuple(stored.totals)

    def _finish(self) -> Any:
        """Returns what a helper found besides its directories, when it is durable."""
        walk, monitor = self._walk, self._monitor
        return (
            self._sink.finish(),
            self._rows.rows,
            walk.links.names,
            [(item.path, int(item.reason)) for item in walk.skipped],
            walk.unstable,
            [tuple(rule) for rule in walk.own_rules],
            (walk.files_read, walk.read_bytes),
            (monitor.files, monitor.size_bytes),
            monitor.warnings,
        )

    def _accept(self, done: list[tuple[_Subtree, _Result]], finished: Any) -> bool:
        """Takes what a helper found, unless it captured anything that is not so here."""
        walk = self._walk
        stored, rows, links, skipped, unstable, rules, read, progress, warnings = finished
        rules = [IgnoreRules(*rule) for rule in rules]
        self._sink.take(stored)  # it is in the store in any case
        if not all(self._fits(*each) for each in done) or not walk.have_room(rules):
            return False
        if walk.builder is not None:
            walk.builder.take(rows)
        for name in links:
            walk.links.add(*name)
        walk.skipped += [Skipped(path, SkipReason(reason)) for path, reason in skipped]
        walk.unstable += unstable
        for rule in rules:
            walk.note_rule(rule)
        walk.files_read += read[0]
        walk.read_bytes += read[1]
        walk.monitor.advance(*progress)
        for code, message in warnings:
            walk.monitor.warn(WarningCode(code), message)
        return True

    def _fits(self, item: _Subtree, result: _Result) -> bool:
        """Returns whether a directory is where a helper found it, with the same exclusions.

        The directory above may have been listed later. If anything changed in between, its row
        would vouch for metadata that the helper did not see.
        """
        if item.path not in self._met:
            return False
        above, name = self._directory_above(item.path), treepath.split(item.path)[1]
        is_same = result is None or above.has_observed(name, result[0])
        return is_same and above.exclusions.fingerprint == item.exclusions.fingerprint

    def _take(self, item: _Subtree, result: _Result) -> None:
        """Takes a directory that a helper captured."""
        if result is None:
            self._capture(item)
            return
        _, (name, *fields), totals = result
        entry = Entry(name, EntryKind.DIRECTORY, *fields)
        self._directory_above(item.path).add_captured(entry, Totals(*totals))
