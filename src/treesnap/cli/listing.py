"""Lists of snapshots: which ones a command line asks for, and the lines that show them.

For ``list``, and for commands of features that list the snapshots of another place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from treesnap.cli.output.as_text import list_lines, list_table
from treesnap.core.model.quantities import parse_moment
from treesnap.core.model.snapshots import SnapshotKind, utc_time
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.core.handle import Handle
    from treesnap.core.model.snapshots import Snapshot


class Selection:
    """What the filter options of a command line ask for."""

    def __init__(
        self,
        handle: Handle,
        *,
        limit: int | None,
        since: str | None,
        kind: str | None,
        **conditions: str | None,
    ) -> None:
        """``conditions`` are the session, tag, phase and type. Raises InvalidArgument."""
        from treesnap.core.ops.references import Filter

        self._limit = limit
        self._filter = Filter(
            **conditions,
            kind=SnapshotKind(kind) if kind is not None else None,
            since=(
                utc_time(parse_moment(since, handle.context.clock_ns()))
                if since is not None
                else None
            ),
        )

    def of(self, snapshots: Iterable[Snapshot]) -> Iterator[Snapshot]:
        """Yields the snapshots that are wanted, in their order."""
        return islice(filter(self._filter.fits, snapshots), self._limit)

    def none_found(self) -> str:
        """Returns the words for an empty list: whether there may be other snapshots."""
        return none_found(self._filter)


def none_found(conditions: Iterable[object]) -> str:
    """Returns the words for an empty list under conditions, of which some are None."""
    is_narrow = any(condition is not None for condition in conditions)
    return "No such snapshots" if is_narrow else "No snapshots"


def snapshot_lines(
    invocation: Invocation,
    handle: Handle,
    snapshots: Sequence[Snapshot],
    *,
    with_roots: bool = False,
) -> Iterator[str]:
    """Returns a table for a terminal, or lines that programs can cut, newest first."""
    terminal = invocation.output.terminal(handle.context.clock_ns())
    if terminal.columns is None:
        return list_lines(snapshots, with_roots=with_roots)
    return list_table(snapshots, terminal, with_roots=with_roots)
