"""Which stores and roots are used: those that no other user controls, and those named as safe.

The user who controls a store says what is restored, and where. One who controls a directory above a
root can put another one in its place while an operation works. For the superuser either would be
a way to lend its rights to someone else. Git asks the same of repositories (safe.directory in
git-config(1)).

What an ordinary user does in another user's root is done with rights that both may lack, and no
link leads it elsewhere (:mod:`treesnap.fs.real_path`): only its store is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from stat import S_IMODE, S_ISVTX, S_IWOTH

from treesnap.errors import ErrorCode, Refused, quoted
from treesnap.fs.real_path import Link, resolved
from treesnap.ops.context import Context, sudo_caller_id
from treesnap.store.ownership import WRITABLE_BY_OTHERS, directory_of_others

_SUPERUSER_ID = 0


def refuse_foreign(context: Context) -> None:
    """Raises Refused for a store, or for the superuser a root, that another user controls.

    Costs a look at the store, and at each directory in it if other users may enter it; the
    superuser pays one for each directory above store and root.
    """
    store, links = resolved(context.store_path)
    _refuse_if("store", store, _store_problem(store) or _link_problem(links))
    root = context.root
    _refuse_if("root", root, _root_problem(root) or _link_problem(context.root_links))


def refuse_foreign_place(what: str, path: str) -> None:
    """Raises Refused for the superuser where another user could take away a new root or store."""
    if os.geteuid() == _SUPERUSER_ID:
        _refuse_if(what, path, _problem_above(path))


def real_target(path: str) -> str:
    """Returns the real path of what is about to be written at an absolute path.

    Raises Refused where a link of another user would lead the superuser there.
    """
    real, links = resolved(path)
    _refuse_if("target", real, _link_problem(links))
    return real


def refuse_owner(what: str, path: str, owner_id: int) -> None:
    """Raises Refused, whoever calls, for what another user has put at a path."""
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
    from treesnap.ops.user_settings import safe_directories

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
    """Returns which link of another user led the superuser to a place, or None."""
    if os.geteuid() != _SUPERUSER_ID:
        return None
    trusted = _trusted_ids()
    for link in links:
        if link.owner_id not in trusted and not _is_in(link.path, _safe_directories()[0]):
            owner = _user(link.owner_id)
            return f"is reached through the link {quoted(link.path)}, which belongs to {owner}"
    return None


def _store_problem(store: str) -> str | None:
    """Returns why a store may not be used, or None; an absent one can be made."""
    found = _status(store)
    if found is not None:
        if found.st_uid not in _trusted_ids():
            return f"belongs to {_user(found.st_uid)}, who may have written anything into it"
        if found.st_mode & WRITABLE_BY_OTHERS:
            return f"can be written to by other users: its mode is {S_IMODE(found.st_mode):04o}"
        inner = directory_of_others(store, found, _trusted_ids())
        if inner is not None:
            return f"has the directory {quoted(inner)}, which other users can write to"
    return _problem_above(store) if os.geteuid() == _SUPERUSER_ID else None


def _root_problem(root: str) -> str | None:
    """Returns why the superuser may not work in a root, or None."""
    if os.geteuid() != _SUPERUSER_ID:
        return None
    found = _status(root)
    if found is not None and found.st_uid not in _trusted_ids():
        return f"belongs to {_user(found.st_uid)}"
    return _problem_above(root)


def _problem_above(path: str) -> str | None:
    """Returns who could put another directory in the place of one, or None."""
    trusted = _trusted_ids()
    for above in _above(path):
        found = _status(above)
        if found is None:
            continue
        if found.st_uid not in trusted:
            return f"lies in {quoted(above)}, which belongs to {_user(found.st_uid)}"
        if found.st_mode & S_IWOTH and not found.st_mode & S_ISVTX:
            return f"lies in {quoted(above)}, in which every user can rename it"
    return None


def _above(path: str) -> Iterator[str]:
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # there is none, or opening it says why it cannot be looked at
        return None


def _user(user_id: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(user_id).pw_name}"
    except KeyError:
        return f"user {user_id}"
