"""Working trees that a host asks for: forks of the root, and in a repository what git makes.

A host that has a hook for them makes none itself, wherever it works. So in a repository this does
what the host would do, and elsewhere it forks the root, to a directory of the user's state.

    what is removed     is captured once more first; its history stays in the store
    where that fails    nothing is removed
    after a kill        it is there as a whole or not at all, and the next removal or tree of that
                        name finishes
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from stat import S_ISLNK

from treesnap.agents.event import WorktreeAsked
from treesnap.agents.fork_places import fork_around, forks_directory
from treesnap.agents.git_head import repository_top
from treesnap.core.fs.durable import ensure_directories
from treesnap.core.model.entries import SkipReason
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    OperationFailed,
    Refused,
    TreesnapError,
    printable,
    quoted,
)
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import Context, context_at, is_worktree, no_directory
from treesnap.core.ops.create import create
from treesnap.core.ops.fork import fork
from treesnap.core.ops.origin import origin_in
from treesnap.core.ops.restore.export import removing_root

_NAME_LENGTH_MAX = 100
_PROJECT_LENGTH_MAX = 64
_OF_HOST = os.path.join(".claude", "worktrees")
"""Where the host has its working trees, below the top of a repository."""
_GIT_TIMEOUT_S = 600
_GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
"""Variables that would have git work on another repository."""


_NO_NAMES = frozenset({"", ".", "..", ".git"})
"""The last would make a repository of the directory that holds the forks."""
_KEEPS = {
    SkipReason.UNREADABLE: "cannot be read",
    SkipReason.MOUNT: "is another file system",
}
"""What was not captured, so that the working tree stays as it is."""


def make_worktree(context: Context, asked: WorktreeAsked, environ: Mapping[str, str]) -> str:
    """Makes a working tree and returns its path; one that the host has asked for before stays.

    Raises InvalidArgument for a name that leads elsewhere, and what a capture and a fork raise.
    """
    name = _checked(asked.name)
    if repository_top(os.path.realpath(asked.root)) is not None:
        return _made_by_git(context, asked.root, name, environ)
    return _forked(context, name)


def remove_worktree(context: Context, asked: WorktreeAsked, environ: Mapping[str, str]) -> None:
    """Captures a working tree once more, then removes it; its history stays.

    Removes only a fork of the state directory, and what lies where the host has its working trees
    of a repository. Raises Refused for anything else, and for what cannot be captured.
    """
    path = asked.path
    if path is None or os.path.realpath(path) != path:
        raise InvalidArgument(f"The working tree {quoted(path or '')} is not a full, real path")
    above = os.path.dirname(path)
    is_ours = fork_around(path) == path
    is_there = os.path.lexists(path)
    is_of_git = not is_ours and above.endswith(os.sep + _OF_HOST)
    if not is_ours and not (is_of_git and (is_worktree(path) or not is_there)):
        raise Refused(
            f"{quoted(path)} was not made for a host", code=ErrorCode.NOT_A_FORK, path=path
        )
    tree = _at(context, path)
    if is_there:
        if is_ours:
            with opened(tree, "look at the fork") as session:
                is_fork = origin_in(session.store, session.root) is not None
                if not is_fork or session.root.is_replaced():
                    raise Refused(
                        f"{quoted(path)} is not a fork", code=ErrorCode.NOT_A_FORK, path=path
                    )
        _capture_all(tree)
        with (
            opened(tree, "remove the working tree", writing=True) as session,
            locked_root(session, "remove"),
            removing_root(session),
        ):
            if is_of_git:
                _forget_in_git(path, environ)
    else:
        _finish_removal(tree, environ)


def _at(context: Context, path: str) -> Context:
    """Returns the context of a working tree, with the same store."""
    return context_at(
        path, context.store_path, fs=context.fs, monitor=context.monitor, wait_s=context.wait_s
    )


def _finish_removal(tree: Context, environ: Mapping[str, str]) -> None:
    """Does what a removal that was killed did not do; raises NotFound where there was no tree."""
    with opened(tree, "remove the working tree", writing=True) as session:
        if not session.store.snapshots.names(session.root.id):
            raise no_directory(tree.root)
        if fork_around(tree.root) != tree.root:
            _forget_in_git(tree.root, environ)


def _capture_all(tree: Context) -> None:
    """Captures a working tree; raises Refused where something in it is not captured."""
    label = "before the working tree was removed"
    request = CaptureRequest(label=label, kind=SnapshotKind.AUTOMATIC, skip_unchanged=True)
    for item in create(tree, request).skipped:
        problem = _KEEPS.get(item.reason)
        if problem is not None:
            raise Refused(
                f"{quoted(item.path)} {problem}, so {quoted(tree.root)} stays",
                code=ErrorCode.UNREADABLE,
                path=item.path,
            )


def _forget_in_git(path: str, environ: Mapping[str, str]) -> None:
    """Lets a repository forget a working tree that is gone, if it knows it."""
    main = os.path.dirname(path).removesuffix(os.sep + _OF_HOST)
    if path in _trees(main, environ):
        _git(["-C", main, "worktree", "remove", "--force", path], environ)


def _checked(name: object) -> str:
    """Returns the name of a directory for a name that a host tells; raises InvalidArgument."""
    text = name if isinstance(name, str) else ""
    parts = text.split("/")
    is_sound = text.isprintable() and 0 < len(os.fsencode(text)) <= _NAME_LENGTH_MAX
    if not is_sound or text.startswith("-") or _NO_NAMES.intersection(parts):
        raise InvalidArgument(f"{quoted(text)} cannot be the name of a working tree")
    return "+".join(parts)  # as the host does


def _forked(context: Context, name: str) -> str:
    """Returns a fork of the root as it is now, or one of that name that is there."""
    label = f"before the working tree {printable(name)}"
    request = CaptureRequest(label=label, kind=SnapshotKind.AUTOMATIC, skip_unchanged=True)
    snapshot = create(context, request).snapshot
    with opened(context, "look for forks") as session:
        root_id = session.root.id
        project = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(context.root))
        above = os.path.join(forks_directory(), f"{project[:_PROJECT_LENGTH_MAX]}-{root_id[:8]}")
        for number in count(1):
            path = os.path.join(above, name if number == 1 else f"{name}-{number}")
            there = session.store.root(os.fsencode(path))
            if not there.is_registered():
                break
            if os.path.isdir(path):
                origin = origin_in(session.store, there)
                if origin is None or origin.root_id != root_id:
                    raise Refused(
                        f"{quoted(path)} is not a fork of {quoted(context.root)}",
                        code=ErrorCode.NOT_A_FORK,
                        path=path,
                    )
                return path
    ensure_directories(context.fs, above)
    fork(context, snapshot.id, [path])
    return path


def _made_by_git(context: Context, start: str, name: str, environ: Mapping[str, str]) -> str:
    """Returns a working tree of a repository, at the place and with the branch of the host.

    It begins at the default branch of the remote ``origin`` as it was last fetched, if there is
    one, else at what is checked out. A branch of the name that is there already is checked out as
    it is.
    """
    main = _main_tree(start, environ)
    path = os.path.join(main, _OF_HOST, name)
    for part in (os.path.join(main, ".claude"), os.path.join(main, _OF_HOST), path):
        if os.path.lexists(part) and S_ISLNK(os.lstat(part).st_mode):
            raise Refused(f"{quoted(part)} is a link", code=ErrorCode.NOT_FORKABLE, path=part)
    if is_worktree(path) and path in _trees(main, environ):
        return path
    if not os.path.lexists(path):
        with suppress(TreesnapError):  # a tree is made without a store, too
            _finish_removal(_at(context, path), environ)
    branch = f"worktree-{name}"
    add = ["-C", main, "worktree", "add", "--no-track"]
    if _asked(["-C", main, "rev-parse", "-q", "--verify", f"refs/heads/{branch}"], environ):
        _git([*add[:-1], path, branch], environ)
        return path
    base = _asked(["-C", main, "rev-parse", "-q", "--verify", "refs/remotes/origin/HEAD"], environ)
    _git([*add, "-b", branch, path, f"{base or 'HEAD'}^{{commit}}"], environ)
    return path


def _main_tree(start: str, environ: Mapping[str, str]) -> str:
    return _trees(start, environ)[0]


def _trees(start: str, environ: Mapping[str, str]) -> list[str]:
    """Returns the working trees of a repository, the main one first."""
    listed = _git(["-C", start, "worktree", "list", "--porcelain", "-z"], environ).split("\0")
    return [line.removeprefix("worktree ") for line in listed if line.startswith("worktree ")]


def _asked(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns what git answers, or an empty text where it knows nothing."""
    try:
        return _git(words, environ).strip()
    except OperationFailed:
        return ""


def _git(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns what git prints; raises OperationFailed."""
    variables = {name: value for name, value in environ.items() if name not in _GIT_PLACES}
    try:
        done = subprocess.run(  # noqa: S603 - what the host itself would run, without a shell
            ["git", *words],  # noqa: S607 - the git of the user
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=variables,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperationFailed(f"git could not be run: {error}") from error
    if done.returncode:
        lines = os.fsdecode(done.stderr).strip().splitlines()
        raise OperationFailed(f"git: {printable(lines[-1] if lines else 'it failed')}")
    return os.fsdecode(done.stdout)
