"""``verify``: check every invariant of a store, report exactly what is damaged, repair it.

Checking never changes anything. ``check`` checks and repairs; lost
content comes from :mod:`treesnap.core.ops.maintenance.object_recovery`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import Corrupt, InvalidArgument, UnsupportedFormat, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import Problem, RecoveredObject, VerifyResult
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import exclusive_use, opened
from treesnap.core.ops.context import Context
from treesnap.core.ops.maintenance.object_recovery import ObjectRecovery
from treesnap.core.ops.trust import refuse_foreign
from treesnap.core.store.fence import collector_held, maintain
from treesnap.core.store.layout import Layout
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
    lost = Store.lost_directories(context.fs, context.store_path)
    if lost:
        return _without_directories(context, asked, lost)
    return _checked(context, asked)


def _without_directories(
    context: Context, asked: VerifyRequest, lost: Sequence[str]
) -> VerifyResult:
    """Reports directories that the store lacks; without them nothing else can be checked."""
    problems = tuple(
        Problem(
            code="lost-directory",
            message=f"The store has no directory {quoted(name)}",
            where=name,
        )
        for name in lost
    )
    if not asked.repair:
        return VerifyResult(problems=problems, left=problems, snapshots=0, objects=0, read_bytes=0)
    refuse_foreign(context)
    with translating_os_errors("repair the store"):
        try:
            store = Store.open(context.fs, context.store_path, writing=True)
        except UnsupportedFormat:
            raise
        except Corrupt:  # its format file is damaged too, and mended next
            store = Store(context.fs, context.store_path)
        store.make_directories()
    result = _checked(context, asked)
    made = f"Made the missing {'directory' if len(lost) == 1 else 'directories'} {', '.join(lost)}"
    return result._replace(
        problems=(*problems, *result.problems), repaired=(made, *result.repaired)
    )


def _checked(context: Context, asked: VerifyRequest) -> VerifyResult:
    try:
        return _verify(context, asked)
    except Corrupt as error:
        if error.path != Layout(context.store_path).format:
            raise
        return _without_format(context, asked, error)


def _without_format(context: Context, asked: VerifyRequest, error: Corrupt) -> VerifyResult:
    """Reports a format file that cannot be read; without it nothing else can be checked."""
    problem = Problem(code="bad-format", message=error.message, where="format")
    if not asked.repair:
        return VerifyResult(
            problems=(problem,), left=(problem,), snapshots=0, objects=0, read_bytes=0
        )
    store, wait_s = Store(context.fs, context.store_path), context.wait_s
    with (
        translating_os_errors("repair the store"),
        collector_held(context.fs, store.layout, operation="verify", wait_s=wait_s),
    ):
        done = store.rewrite_format()
    result = _verify(context, asked)
    mended = (done,) if done is not None else ()  # else another repair was faster
    return result._replace(
        problems=(problem, *result.problems), repaired=(*mended, *result.repaired)
    )


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
