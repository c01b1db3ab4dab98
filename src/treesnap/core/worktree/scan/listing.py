"""Lists one directory: what ``lstat`` says of its names, with exclusions applied.

Looks at all names, at those in a scope, or at those that may have changed.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from stat import S_IFDIR, S_IFMT, S_ISDIR, S_ISLNK, S_ISREG

from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.statcache import PlainObservation, Row, decode_observations
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.native import accelerator
from treesnap.core.fs.record_locks import close_after_reading, open_for_reading
from treesnap.core.model import treepath
from treesnap.core.model.entries import SkipReason
from treesnap.core.model.errors import Corrupt, WarningCode, printable, quoted
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.core.model.type_names import Any
from treesnap.core.worktree.directory import is_left_by_others
from treesnap.core.worktree.scan.file_reader import blames_file
from treesnap.core.worktree.scan.ignore import (
    EVERYTHING,
    IGNORE_FILE,
    IGNORE_FILE_SIZE_MAX,
    Exclusions,
    UnreadableRules,
    parse_ignore_file,
)
from treesnap.core.worktree.spellings import has_accents, is_folding, other_spellings, spelled

_ENCODING = sys.getfilesystemencoding()
_HIDDEN = (0, 0, 0, 0, 0, 0)
"""What is observed of a name that is left out here, so that its changes do not count."""


class DirectoryListing:
    """One directory's names, sorted by raw name."""

    def __init__(self, exclusions: Exclusions) -> None:
        self.exclusions = exclusions
        self.observations: list[Any] = []
        """Observations as plain tuples, because there are hundreds of thousands."""
        self.linked: list[tuple[bytes, int, int, int]] = []
        """Names with more than one hard link, with device, inode and the number of links."""
        self.closed: dict[bytes, int] = {}
        """Names that cannot be looked at, with the type that their directory tells, or 0."""
        self.hidden: list[tuple[bytes, int]] = []
        """Names that are left out, with the reason."""
        self.hidden_types: list[tuple[bytes, int]] = []
        """Those that exclusions hide, with their type, for the row; but no ignore file."""
        self.rule: IgnoreRules | None = None
        """The directory's own exclusions, when it has some that are not yet in force."""
        self.warnings: list[tuple[WarningCode, str]] = []
        """Warnings about the directory's ignore file."""
        self.before: dict[bytes, PlainObservation] | None = None
        """What the directory's row says of its names, if that was needed."""
        self.packed: bytes | None = None
        """The row's bytes for all names, if they are as it says; None if that is not known."""
        self.is_unreadable = False
        """Whether all names are left out because the root's rules cannot be read."""
        self.revealed: set[bytes] = set()
        """Names that the rules exclude, and that are looked at nevertheless."""


class PathTree:
    """Some paths of a tree, as a tree of names: those in scope, or those that may have changed.

    A walk that is given what may have changed since an earlier walk looks at nothing else: what
    is not in it is as the rows of the stat cache say. It may hold more than what really changed,
    never less. With no names and no flags, nothing in the directory is looked at.
    """

    __slots__ = ("is_listed", "is_whole", "names")

    def __init__(self, *, is_listed: bool = False) -> None:
        self.names: dict[bytes, PathTree] = {}
        """Names of the directory that are meant, or hold something that is."""
        self.is_listed: bool = is_listed
        """Whether every name of the directory is meant, and what is below only if named."""
        self.is_whole: bool = False
        """Whether everything below is meant."""

    def at(self, path: bytes) -> PathTree:
        """Returns the node of a path, made if need be."""
        node = self
        for name in treepath.components(path):
            node = node.names.setdefault(name, PathTree())
        return node

    def find(self, path: bytes) -> PathTree | None:
        """Returns the node of a path, or the nearest above it that is whole, or None."""
        node: PathTree | None = self
        for name in treepath.components(path):
            if node is None or node.is_whole:
                break
            node = node.names.get(name)
        return node


def path_tree(
    paths: Iterable[bytes] = (), *, whole: Iterable[bytes] = (), listed: Iterable[bytes] = ()
) -> PathTree:
    """Returns the tree of single paths, of all below some, and of all names of directories."""
    root = PathTree()
    for path in paths:
        root.at(path)
    for path in whole:
        root.at(path).is_whole = True
    for path in listed:
        root.at(path).is_listed = True
    return root


def list_directory(
    fs: FileSystem,
    fd: int,
    path: bytes,
    exclusions: Exclusions,
    scope: PathTree | None = None,
    revealed: PathTree | None = None,
) -> DirectoryListing:
    """Looks once at every name of a directory, or of a scope; raises OSError, UnreadableRules.

    A name that cannot be looked at, such as that of a mount whose server is gone, is left out:
    it says nothing about the others.

    Excluded names are observed as zeros, unless they are ``revealed``: their changes do not
    count. So are all names of the root when its rules cannot be read, because there is no
    directory above it to leave out instead; its rules then exclude everything.
    """
    listing = DirectoryListing(exclusions.at(path))
    if scope is not None:
        _observe_scope(fs, fd, scope, listing)
        has_ignore_file = has_reserved = True
    else:
        has_ignore_file, has_reserved = _observe_all(fs, fd, listing)
    if has_ignore_file:
        try:
            _read_ignore_file(fs, fd, path, listing, is_listed=scope is None)
        except UnreadableRules as error:
            if path:
                raise
            listing.warnings.append((WarningCode.RULES_UNREADABLE, error.message))
            listing.is_unreadable = True
            _enter_rule(IgnoreRules(path, EVERYTHING), listing)
    if listing.exclusions or has_reserved or listing.closed:
        _hide(path, listing, revealed.names if revealed is not None else ())
        if listing.hidden:
            listing.packed = None
    return listing


def list_changed(
    fs: FileSystem, fd: int, path: bytes, row: Row, changed: PathTree, exclusions: Exclusions
) -> DirectoryListing | None:
    """Looks at the names of a directory that may have changed, and takes the rest from its row.

    Returns None when all names have to be looked at: files with other links may have changed
    elsewhere, other exclusions hide other names, and a row may be damaged.
    """
    if changed.is_listed or changed.is_whole or row.linked or IGNORE_FILE in changed.names:
        return None
    try:
        before = decode_observations(row.observations)
    except Corrupt:  # or they are too many
        return None
    listing = DirectoryListing(exclusions.at(path))
    listing.before = before
    if IGNORE_FILE in before:
        try:
            _read_ignore_file(fs, fd, path, listing)
        except UnreadableRules:
            return None
    if listing.exclusions.fingerprint != row.rules:
        return None
    _observe_names(fs, fd, changed.names, listing)
    _hide(path, listing)
    listing.hidden += [
        (name, reason)
        for name, reason in row.skipped
        if name not in changed.names and before.get(name, ())[1:] == _HIDDEN
    ]
    listing.hidden_types += [item for item in row.hidden if item[0] not in changed.names]
    listing.hidden_types.sort()
    looked, listing.observations = listing.observations, list(before.values())
    if looked == [before[name] for name in sorted(changed.names) if name in before]:
        listing.packed = row.observations
    else:
        rest = [item for item in listing.observations if item[0] not in changed.names]
        listing.observations = sorted([*rest, *looked])
    return listing


def count_names(
    fs: FileSystem, fd: int, path: bytes, exclusions: Exclusions
) -> tuple[int, list[bytes], Exclusions]:
    """Returns how many names a directory has, its subdirectories, and what is excluded in it.

    Looks at no name, so it costs a sixth of a listing. Subdirectories that are excluded, or have
    a name of our own, are left out, and all of a directory whose rules cannot be read. Raises
    OSError.
    """
    listing = DirectoryListing(exclusions.at(path))
    count, names, has_ignore_file = 0, [], False
    with fs.scan(fd) as entries:
        for entry in entries:
            count += 1
            text = entry.name
            if entry.is_dir(follow_symlinks=False):
                names.append(os.fsencode(text))
            has_ignore_file |= text == ".snapignore"
    if has_ignore_file:
        _read_ignore_file(fs, fd, path, listing)
    in_force = listing.exclusions
    hides = in_force.names_in(path) if in_force else None
    kept = [
        name
        for name in sorted(names)
        if not name.startswith(STAGE_PREFIX) and not (hides and hides(name, S_IFDIR))
    ]
    return count, kept, in_force


def _observe_all(fs: FileSystem, fd: int, listing: DirectoryListing) -> tuple[bool, bool]:
    """Observes every name; returns whether one is an ignore file, one a name of our own."""
    native = accelerator(fs)
    packed = native.observe(fd, IGNORE_FILE, STAGE_PREFIX) if native is not None else None
    if packed is not None:
        with suppress(Corrupt):  # they are too many
            listing.observations = list(decode_observations(packed).values())
            listing.packed = packed
            return False, False
    encoding = _ENCODING
    observations = listing.observations
    linked = listing.linked
    has_ignore_file = has_reserved = False
    with fs.scan(fd) as entries:
        for entry in entries:
            text = entry.name
            name = text.encode(encoding, "surrogateescape")
            try:
                stat = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                _note_closed(name, error, _told_type(entry), listing)
                has_ignore_file |= name == IGNORE_FILE
                continue
            mode = stat.st_mode
            inode = stat.st_ino
            device = stat.st_dev
            observations.append(
                (name, mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, inode, device)
            )
            if stat.st_nlink > 1 and not S_ISDIR(mode):
                linked.append((name, device, inode, stat.st_nlink))
            if text[0] == ".":
                has_ignore_file |= text == ".snapignore"
                has_reserved |= name.startswith(STAGE_PREFIX)
    observations.sort()
    return has_ignore_file, has_reserved


def _told_type(entry: os.DirEntry[str]) -> int:
    """Returns whether a directory says of a name that it is a directory, too."""
    with suppress(OSError):
        return S_IFDIR if entry.is_dir(follow_symlinks=False) else 0
    return 0


def _note_closed(name: bytes, error: OSError, mode: int, listing: DirectoryListing) -> None:
    """Notes a name at which a look failed; raises the error unless it is about that name."""
    if not blames_file(error):
        raise error
    listing.closed[name] = mode
    listing.observations.append((name, *_HIDDEN))


def _observe_scope(fs: FileSystem, fd: int, scope: PathTree, listing: DirectoryListing) -> None:
    """Looks at the names in scope; ignores a link or a file where a directory is expected."""
    _observe_names(fs, fd, scope.names, listing)
    listing.observations = [
        item
        for item in listing.observations
        if scope.names[item[0]].is_whole or S_ISDIR(item[1]) or item[0] in listing.closed
    ]
    seen = {item[0] for item in listing.observations}
    listing.linked = [item for item in listing.linked if item[0] in seen]


def _observe_names(
    fs: FileSystem, fd: int, names: Iterable[bytes], listing: DirectoryListing
) -> None:
    """Looks at some names of a directory, in order; leaves out those that are absent.

    A name that exists only in another spelling is absent. To find that out costs one look, and
    some more for names with accents.
    """
    is_exact: dict[bool, bool] = {}  # for names without accents, and with them
    present: Container[bytes] = ()
    for name in sorted(names):
        try:
            stat = fs.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            _note_closed(name, error, 0, listing)
            continue
        kind = has_accents(name)
        if kind not in is_exact and other_spellings(name):
            is_exact[kind] = not is_folding(fs, fd, name)
            if not is_exact[kind]:
                present = {os.fsencode(text) for text in fs.list_names(fd)}
        if not is_exact.get(kind, True) and name not in present:
            continue
        listing.observations.append(
            (
                name,
                stat.st_mode,
                stat.st_size,
                stat.st_mtime_ns,
                stat.st_ctime_ns,
                stat.st_ino,
                stat.st_dev,
            )
        )
        if stat.st_nlink > 1 and not S_ISDIR(stat.st_mode):
            listing.linked.append((name, stat.st_dev, stat.st_ino, stat.st_nlink))


def _read_ignore_file(
    fs: FileSystem, fd: int, path: bytes, listing: DirectoryListing, *, is_listed: bool = True
) -> None:
    """Adds the rules of the directory's own ignore file to its exclusions.

    Only a regular file has rules. A link is not followed, as in git; because rules were probably
    intended, they count as unreadable. What another user left in a directory like ``/tmp`` does
    not say what of this user's files is captured. Raises UnreadableRules, and OSError for errors
    that are not the file's. One in another spelling has none, which shows in a listing; without
    one it costs a look.
    """
    if not listing.exclusions.heeds_files:
        return
    try:
        status = fs.lstat(IGNORE_FILE, dir_fd=fd)
        if not is_listed and is_folding(fs, fd, IGNORE_FILE) and spelled(fs, fd, IGNORE_FILE):
            return
        mode = status.st_mode
        if is_left_by_others(fs, fd, status):
            warning = (
                f"{quoted(treepath.join(path, IGNORE_FILE))} excludes nothing: it belongs to "
                "another user, in a directory where everyone may make files"
            )
            listing.warnings.append((WarningCode.RULE_SKIPPED, warning))
            return
        if S_ISLNK(mode):
            raise UnreadableRules(path, errno.ELOOP, "is a symbolic link, which is not followed")
        if not S_ISREG(mode):
            where = printable(treepath.join(path, IGNORE_FILE))
            warning = f"{quoted(where)} is not a regular file, and excludes nothing"
            listing.warnings.append((WarningCode.RULE_SKIPPED, warning))
            return
        data = _read_whole(fs, fd, path)
    except FileNotFoundError:
        return
    except UnreadableRules:
        raise
    except OSError as error:
        if not blames_file(error):
            raise
        number = error.errno or errno.EIO
        why = f"cannot be read ({os.strerror(number)})"
        raise UnreadableRules(path, number, why) from error
    rule, message = parse_ignore_file(path, data)
    if message is not None:
        listing.warnings.append((WarningCode.RULE_SKIPPED, message))
    _enter_rule(rule, listing)


def _read_whole(fs: FileSystem, fd: int, path: bytes) -> bytes:
    ignore_fd = open_for_reading(fs, IGNORE_FILE, os.O_RDONLY | os.O_NONBLOCK, dir_fd=fd)
    try:
        if not S_ISREG(fs.fstat(ignore_fd).st_mode):
            raise UnreadableRules(path, errno.ESTALE, "changed its type while it was read")
        data = fs.read_at(ignore_fd, IGNORE_FILE_SIZE_MAX + 1, 0)
    finally:
        close_after_reading(fs, ignore_fd)
    if len(data) > IGNORE_FILE_SIZE_MAX:
        why = f"is longer than {IGNORE_FILE_SIZE_MAX >> 10} KiB"
        raise UnreadableRules(path, errno.EFBIG, why)
    return data


def _enter_rule(rule: IgnoreRules, listing: DirectoryListing) -> None:
    if rule.patterns and rule not in listing.exclusions.rules:
        listing.exclusions = listing.exclusions.entering(rule)
        listing.rule = rule


def _hide(path: bytes, listing: DirectoryListing, revealed: Container[bytes] = ()) -> None:
    """Replaces the observations of names that are left out by zeros."""
    reason_of = listing.exclusions.reasons_in(path) if listing.exclusions else None
    for position, item in enumerate(listing.observations):
        name, mode = item[0], listing.closed.get(item[0], item[1])
        reason: SkipReason | None
        if name.startswith(STAGE_PREFIX):
            reason = SkipReason.RESERVED
        elif listing.is_unreadable:
            reason = SkipReason.UNREADABLE
        elif reason_of is not None and (reason := reason_of(name, mode, item[2])) is not None:
            if name in revealed:
                listing.revealed.add(name)
                if name not in listing.closed:
                    continue
                reason = SkipReason.UNREADABLE
        elif name in listing.closed:
            reason = SkipReason.UNREADABLE
        else:
            continue
        listing.observations[position] = (name, *_HIDDEN)
        listing.hidden.append((name, int(reason)))
        if reason == SkipReason.EXCLUDED and name != IGNORE_FILE:
            listing.hidden_types.append((name, S_IFMT(mode)))
    if listing.hidden:
        left_out = {name for name, _ in listing.hidden}
        listing.linked = [item for item in listing.linked if item[0] not in left_out]
