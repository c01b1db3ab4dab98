"""Which stores and roots are used: those that no other user controls, and those named as safe.

The user who controls a store says what is restored, and where. One who controls a directory above a
root can put another one in its place while an operation works. For the superuser either would be
a way to lend its rights to someone else. Git asks the same of repositories (safe.directory in
git-config(1)).

What an ordinary user does in another user's root is done with rights that both may lack, and no
link leads it elsewhere (:mod:`treesnap.core.fs.real_path`): only its store is looked at.

Nothing is looked at twice, with a moment between in which another directory takes the place of the
one that was judged. The way to a path is looked up once, from the root directory down, and each
directory on it is judged (:class:`PathLookup`). What is absent is made below
an open directory, opened, and judged by its descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from errno import ELOOP
from stat import S_IMODE, S_ISDIR, S_ISVTX, S_IWOTH

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.local import OwnerFileSystem
from treesnap.core.fs.os_errors import is_full
from treesnap.core.fs.processes import unmapped_owner_id
from treesnap.core.fs.real_path import Link, PathLookup, ensure_real, looked_up
from treesnap.core.model.errors import ErrorCode, Refused, StoreMissing, quoted
from treesnap.core.ops.context import Context, sudo_caller_id
from treesnap.core.store.ownership import WRITABLE_BY_OTHERS, directory_of_others

_SUPERUSER_ID = 0


def refuse_foreign(context: Context, *, create: bool = False) -> None:
    """Raises Refused for a store, or for the superuser a root, that another user controls.

    A store that passes stays where it is: no other user may change any name on the way to it. So
    one that is absent must not be looked for again, as another user may make it meanwhile: raises
    StoreMissing, or with ``create`` makes its directory, so that it passes. Raises OperationFailed
    where that is not possible, and OSError.

    Costs a look at each directory above the store, and at each in it if other users may enter it;
    the superuser pays the same for the root.
    """
    lookup = looked_up(context.store_path)
    _refuse_if("store", lookup.real, _store_problem(lookup))
    _refuse_if("root", context.root, _root_problem(context))
    status = lookup.status if lookup.error is None else _made(context, lookup, create=create)
    if status is not None and isinstance(context.fs, OwnerFileSystem):
        context.fs.give_to_owner_of(status)


def _made(context: Context, lookup: PathLookup, *, create: bool) -> os.stat_result | None:
    """Makes the directory of a store that was not seen, and returns its status.

    None where a file is in the place of a directory above it: opening the store says that.
    """
    from treesnap.core.store.store import unavailable

    path, error = context.store_path, lookup.error
    assert error is not None
    if isinstance(error, NotADirectoryError):
        return None
    if isinstance(error, PermissionError) or error.errno == ELOOP:
        raise unavailable(path, "opened", error) from error
    if not isinstance(error, FileNotFoundError):
        raise error
    if not create:
        raise StoreMissing(f"There is no store at {quoted(path)}", path=path)
    if lookup.is_dangling:
        raise unavailable(path, "made", error) from error
    try:
        return _made_real(context.fs, lookup.real)
    except OSError as failed:
        if is_full(failed):
            raise
        raise unavailable(path, "made", failed) from failed


def _made_real(fs: FileSystem, path: str) -> os.stat_result:
    """Makes the directory of a store, and those above it that are missing."""
    trusted = _trusted_ids()

    def judge(here: str, status: os.stat_result) -> None:
        is_above = here != path
        problem = _directory_problem(here, status, trusted) if is_above else _own_problem(status)
        _refuse_if("store", path, problem)

    fd = ensure_real(fs, path, judge, gives_owner=os.geteuid() == _SUPERUSER_ID)
    try:
        return fs.fstat(fd)
    finally:
        fs.close(fd)


def ensure_above_root(context: Context) -> None:
    """Makes what is missing of the directories above the root.

    Raises Refused for the superuser where one is another user's by the time it is open.
    """
    trusted = _trusted_ids()

    def judge(here: str, status: os.stat_result) -> None:
        if os.geteuid() == _SUPERUSER_ID:
            _refuse_if("root", context.root, _directory_problem(here, status, trusted))

    context.fs.close(ensure_real(context.fs, os.path.dirname(context.root), judge))


def refuse_foreign_place(what: str, path: str) -> None:
    """Raises Refused where another user could take away a new store or copy.

    For the superuser also what else is about to be made.
    """
    if what in {"store", "copy"} or os.geteuid() == _SUPERUSER_ID:
        _refuse_if(what, path, _problem_above(looked_up(path)))


def has_root(context: Context) -> bool:
    """Returns what :meth:`Context.has_root` does; raises Refused where another user made it.

    The superuser may have found it absent before. What is there now and passes stays there.
    """
    if not context.has_root():
        return False
    _refuse_if("root", context.root, _root_problem(context))
    return True


def refuse_foreign_remote(directory: str) -> None:
    """Raises Refused where another user controls what would be stored in a directory.

    For a remote that is not encrypted. What is read of one is checked. Unlike a store, it may be
    written to by its group: the machines of several people share a remote.
    """
    lookup = looked_up(directory)
    problem = _place_problem(lookup) or _link_problem(lookup.links)
    if problem is None and lookup.status is not None and lookup.status.st_mode & S_IWOTH:
        problem = _writable(lookup.status)
    _refuse_if("remote", lookup.real, problem)


def real_target(path: str, what: str = "target") -> str:
    """Returns the real path of what is about to be written, or captured, at an absolute path.

    Raises Refused where a link of another user would lead the superuser there.
    """
    lookup = looked_up(path)
    if os.geteuid() == _SUPERUSER_ID:
        _refuse_if(what, lookup.real, _link_problem(lookup.links))
    return lookup.real


def refuse_owner(what: str, path: str, owner_id: int) -> None:
    """Raises Refused, to every user, for what another user has put at a path."""
    if owner_id not in _trusted_ids():
        _refuse_if(what, path, f"belongs to {_user(owner_id)}")


def _refuse_if(what: str, path: str, why: str | None) -> None:
    if why is None:
        return
    directories, problems = _safe_directories()
    if not _is_in(path, directories):
        message = ". ".join([f"The {what} {quoted(path)} {why}", *problems])
        raise Refused(message, code=ErrorCode.FOREIGN_OWNER, path=path)


def _safe_directories() -> tuple[list[str], list[str]]:
    """Returns which directories the user has named as safe, and what is wrong with other words."""
    from treesnap.core.ops.user_settings import safe_directories

    directories, problems = safe_directories()
    return list(map(os.path.realpath, directories)), problems


def _is_in(path: str, directories: Iterable[str]) -> bool:
    """Returns whether a directory is one of these, or below one."""
    return any(
        path == each or path.startswith(each.rstrip(os.sep) + os.sep) for each in directories
    )


def _trusted_ids() -> frozenset[int]:
    """Returns the users who may control what this one works on.

    The superuser trusts the user that called it by sudo(8), who could do all of this anyway.
    """
    user_id = os.geteuid()
    caller = sudo_caller_id() if user_id == _SUPERUSER_ID else None
    return frozenset({_SUPERUSER_ID, user_id if caller is None else caller})


def _link_problem(links: Iterable[Link]) -> str | None:
    """Returns which link of another user led to a place, or None."""
    trusted = _trusted_ids()
    for link in links:
        if link.owner_id not in trusted and not _is_in(link.path, _safe_directories()[0]):
            owner = _user(link.owner_id)
            return f"is reached through the link {quoted(link.path)}, which belongs to {owner}"
    return None


def _store_problem(lookup: PathLookup) -> str | None:
    """Returns why a store may not be used, or None; an absent one can be made."""
    if lookup.status is not None:
        problem = _own_problem(lookup.status)
        if problem is not None:
            return problem
        inner = directory_of_others(lookup.real, lookup.status, _trusted_ids())
        if inner is not None:
            return f"has the directory {quoted(inner)}, which other users can write to"
    return _link_problem(lookup.links) or _problem_above(lookup)


def _own_problem(store: os.stat_result) -> str | None:
    """Returns why a store with this status may not be used, or None."""
    if store.st_uid not in _trusted_ids():
        return f"belongs to {_user(store.st_uid)}, who may have written anything into it"
    return _writable(store) if store.st_mode & WRITABLE_BY_OTHERS else None


def _writable(status: os.stat_result) -> str:
    return f"can be written to by other users: its mode is {S_IMODE(status.st_mode):04o}"


def _root_problem(context: Context) -> str | None:
    """Returns why the superuser may not work in a root, or None."""
    if os.geteuid() != _SUPERUSER_ID:
        return None
    lookup = looked_up(context.root)
    return _place_problem(lookup) or _link_problem((*context.root_links, *lookup.links))


def _place_problem(lookup: PathLookup) -> str | None:
    """Returns which other user owns a directory, or could put another one in its place, or None."""
    status, trusted = lookup.status, _trusted_ids()
    if status is not None and not _is_trusted(status, trusted):
        return f"belongs to {_user(status.st_uid)}"
    return _problem_above(lookup)


def _problem_above(lookup: PathLookup) -> str | None:
    """Returns who could put another directory in the place of one, or None."""
    trusted = _trusted_ids()
    problems = (_directory_problem(*each, trusted) for each in reversed(lookup.above))
    return next(filter(None, problems), None)


def _directory_problem(path: str, status: os.stat_result, trusted: frozenset[int]) -> str | None:
    """Returns who could put another directory in the place of one in a directory, or None."""
    if not _is_trusted(status, trusted):
        return f"lies in {quoted(path)}, which belongs to {_user(status.st_uid)}"
    if S_ISDIR(status.st_mode) and status.st_mode & S_IWOTH and not status.st_mode & S_ISVTX:
        return f"lies in {quoted(path)}, in which every user can rename it"
    return None


def _is_trusted(status: os.stat_result, trusted: frozenset[int]) -> bool:
    return status.st_uid in trusted or _is_of_the_unmapped(status.st_uid)


def _is_of_the_unmapped(owner_id: int) -> bool:
    """Returns whether an ordinary user in a sandbox sees no more of an owner than an overflow id.

    There the directories above the user's own belong to it, root's too.
    """
    return os.geteuid() != _SUPERUSER_ID and owner_id == unmapped_owner_id()


def _user(user_id: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(user_id).pw_name}"
    except KeyError:
        return f"user {user_id}"
