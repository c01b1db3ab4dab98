"""``verify``: check every invariant of a store, report exactly what is damaged, repair it.

Checking never changes anything. ``check`` checks and repairs; lost
content comes from :mod:`treesnap.core.ops.maintenance.object_recovery`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import Corrupt, InvalidArgument, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import Problem, RecoveredObject, VerifyResult
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import exclusive_use, opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.maintenance.object_recovery import ObjectRecovery
from treesnap.core.ops.trust import refuse_foreign
from treesnap.core.store.fence import collector_held, maintain
from treesnap.core.store.maintenance.check.checker import ALL, Checker, Sample
from treesnap.core.store.maintenance.check.metadata_files import CheckPlace
from treesnap.core.store.store import Store

if TYPE_CHECKING:
    from treesnap.core.store.maintenance.check.repair import Repair


class VerifyRequest(NamedTuple):
    """What the caller of ``verify`` asked for."""

    read_data: bool
    repair: bool
    sample: Sample


def verify(
    context: Context, *, read_data: bool, repair: bool, sample: tuple[int, int] | None
) -> VerifyResult:
    """Checks a store; see :meth:`treesnap.Handle.verify`."""
    part = Sample(*sample) if sample is not None else ALL
    if not 1 <= part.part <= part.parts:
        raise InvalidArgument(f"There is no part {part.part} of {part.parts}")
    asked = VerifyRequest(read_data or sample is not None, repair, part)
    obstacles = _obstacles(context)
    if not obstacles:
        return _verify(context, asked)
    if not repair:
        return VerifyResult(
            problems=obstacles, left=obstacles, snapshots=0, objects=0, read_bytes=0
        )
    repaired = [*_mend_obstacles(context, obstacles)]
    result = _verify(context, asked)
    return result._replace(
        problems=(*obstacles, *result.problems), repaired=(*repaired, *result.repaired)
    )


_LOST_DIRECTORY = "lost-directory"
_BAD_FORMAT = "bad-format"


def _obstacles(context: Context) -> tuple[Problem, ...]:
    """Returns what has to be mended before anything else can be checked.

    Directories that the store lacks, and a format file that cannot be read.
    """
    problems = []
    with translating_os_errors("verify the store"):
        refuse_foreign(context)
        store = Store(context.fs, context.store_path)
        for name in store.lost_directories():
            message = f"The store has no directory {quoted(name)}"
            problems.append(Problem(code=_LOST_DIRECTORY, message=message, where=name))
        try:
            Store.open(context.fs, context.store_path)
        except Corrupt as error:
            if error.path != store.layout.format:
                raise
            problems.append(Problem(code=_BAD_FORMAT, message=error.message, where="format"))
    return tuple(problems)


def _mend_obstacles(context: Context, obstacles: Sequence[Problem]) -> Iterator[str]:
    """Mends what keeps a store from being checked; yields what was done.

    The directories first: the format file is written in one, under a lock in another.
    """
    lost = [problem.where for problem in obstacles if problem.code == _LOST_DIRECTORY]
    is_format_bad = len(lost) < len(obstacles)
    with translating_os_errors("repair the store"):
        store = Store(context.fs, context.store_path)
        if not is_format_bad:  # else rewriting it looks whether a newer treesnap may have made it
            Store.open(context.fs, context.store_path, writing=True)
        if lost:
            store.make_directories()
            noun = "directory" if len(lost) == 1 else "directories"
            yield f"Made the missing {noun} {', '.join(lost)}"
        if is_format_bad:
            wait_s = context.wait_s
            with collector_held(context.fs, store.layout, operation="verify", wait_s=wait_s):
                done = store.rewrite_format()
            if done is not None:  # else another repair was faster
                yield done


def _verify(context: Context, asked: VerifyRequest) -> VerifyResult:
    with opened(context, "verify the store", recover=False) as session:
        checker = Checker(
            session.store, asked.sample, _place(context), read_data=asked.read_data
        ).run()
    if not (asked.repair and checker.problems):
        return _result(checker, checker)
    from treesnap.core.store.maintenance.check.repair import Repair

    with (
        exclusive_use(context, "repair the store", operation="verify", recover=False) as (
            session,
            proof,
        ),
        maintain(session.store, proof, wait_s=context.wait_s) as maintaining,
    ):
        store = session.store

        def recover_objects() -> list[RecoveredObject]:
            return ObjectRecovery(context, store, checker.lost).run(checker.damaged)

        repair = Repair(
            store, checker, maintaining, monitor=context.monitor, recover_objects=recover_objects
        )
        repair.run()
    with opened(context, "verify the store", recover=False) as session:
        again = Checker(session.store, asked.sample, _place(context), read_data=asked.read_data)
        left = again.run(before=checker)
    return _result(checker, left, repair)


def _result(checked: Checker, left: Checker, repair: Repair | None = None) -> VerifyResult:
    return VerifyResult(
        problems=tuple(checked.problems),
        left=tuple(left.problems),
        partial=tuple(left.partial),
        repaired=tuple(repair.repaired) if repair is not None else (),
        recovered=tuple(repair.recovered) if repair is not None else (),
        snapshots=left.snapshots,
        objects=len(left.checked),
        read_bytes=checked.read_bytes,
        content_read=checked.reads_data,
        newer=tuple(left.newer),
    )


def _place(context: Context) -> CheckPlace:
    return CheckPlace(os.fsencode(context.root), context.monitor, context.wait_s)
