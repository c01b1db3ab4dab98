"""Where an agent was started below the top of a repository, and how all of it becomes its root.

What a host names is captured and no more. So an agent that was started in a subdirectory may
change files that no snapshot holds. That is said, and one command makes the repository the root.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from treesnap.agents.git_head import repository_top
from treesnap.core.model.errors import InvalidArgument, Refused, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import (
    Context,
    check_root,
    default_store_path,
    is_worktree,
    refuse_dangerous,
)
from treesnap.core.ops.create import create


class RepositoryPart(NamedTuple):
    """A root that is a part of a repository."""

    root: str
    repository: str
    """The top of the repository, which is not captured."""
    store: str | None
    """Where the history is, unless that is the user's default."""

    @property
    def command(self) -> str:
        """What a person types to have all of the repository captured."""
        store = ["--store", self.store] if self.store is not None else []
        return shlex.join(["snap", "-C", self.root, *store, "agent", "root", self.repository])

    @property
    def text(self) -> str:
        """What is captured, and what to type; one line."""
        whole = printable(self.repository)
        return (
            f"Only {printable(self.root)} is captured, a part of the repository {whole}; for all "
            f"of it, type: {printable(self.command)}"
        )


def repository_part(root: str, store_path: str) -> RepositoryPart | None:
    """Returns what a root is a part of; None for all of one, and where the whole is refused.

    Looks at each directory above, and opens nothing.
    """
    top = repository_top(root)
    if top is None or top == root:
        return None
    try:
        refuse_dangerous(top, store_path)
    except Refused:
        return None
    return RepositoryPart(root, top, store_path if store_path != default_store_path() else None)


def use_root(context: Context, start: str) -> tuple[str, ...]:
    """Makes a directory the root for what is done in another one below it, or in itself.

    Captures it, unless the newest snapshot is the same. Then roots in between are passed over; they
    keep their histories. Returns these. Raises InvalidArgument for a directory that is not below
    the root, or in a working tree of its own there, and what a capture raises.
    """
    check_root(context, force=False)
    between = list(_between(context.root, start))
    tree = next(filter(is_worktree, between), None)
    if tree is not None:
        raise InvalidArgument(
            f"The directory {quoted(tree)} is a working tree, so a root of its own", path=tree
        )
    label = "taken to be the root of agents"
    request = CaptureRequest(label=label, kind=SnapshotKind.AUTOMATIC, skip_unchanged=True)
    create(context, request)
    joined = [path for path in between if _join(context, path, is_joined=True)]
    _join(context, context.root, is_joined=False)
    return tuple(joined)


def _between(root: str, start: str) -> Iterator[str]:
    """Yields a directory and those above it that are below a root."""
    here = os.path.realpath(start)
    while here != root:
        yield here
        parent = os.path.dirname(here)
        if parent == here:
            raise InvalidArgument(f"The directory {quoted(root)} does not hold {quoted(start)}")
        here = parent


def _join(context: Context, path: str, *, is_joined: bool) -> bool:
    """Says of a root whether it is passed over; returns whether there is such a root."""
    there = context._replace(root=path, given_root=path, watcher=None)
    with opened(there, "choose a root", writing=True, recover=False) as session:
        root = session.root
        if root.record is None or (not is_joined and not root.is_joined):
            return False
        with locked_root(session, "choose a root", touches_tree=False):
            root.join(is_joined=is_joined)
    return True
