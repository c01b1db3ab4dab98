"""``verify``: check every invariant of a store, say exactly what is damaged, repair.

Looking never changes anything; what it looks at is in :mod:`treesnap.ops.examination`,
and what ``repair`` does in :mod:`treesnap.ops.repair`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from treesnap.errors import Corrupt, InvalidArgument
from treesnap.fs.failure import reported
from treesnap.ops.access import opened
from treesnap.ops.examination import Examination
from treesnap.ops.sample import ALL, Sample
from treesnap.results import Problem, VerifyResult
from treesnap.store.layout import Layout
from treesnap.store.lock import held
from treesnap.store.store import mend_format

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.ops.repair import Repair


class Asked(NamedTuple):
    """What the caller of ``verify`` asked for."""

    read_data: bool
    repair: bool
    sample: Sample


def verify(
    handle: Handle, *, read_data: bool, repair: bool, sample: tuple[int, int] | None
) -> VerifyResult:
    """Checks a store; see :meth:`treesnap.Handle.verify`."""
    part = Sample(*sample) if sample is not None else ALL
    if not 1 <= part.part <= part.parts:
        raise InvalidArgument(f"There is no part {part.part} of {part.parts}")
    asked = Asked(read_data or sample is not None, repair, part)
    try:
        return _verify(handle, asked)
    except Corrupt as error:
        if error.path != Layout(handle.store_path).format:
            raise
        return _without_format(handle, asked, error)


def _without_format(handle: Handle, asked: Asked, error: Corrupt) -> VerifyResult:
    """Names a format file that cannot be read; with it nothing else can be looked at."""
    problem = Problem(code="bad-format", message=error.message, where="format")
    if not asked.repair:
        return VerifyResult(
            problems=(problem,), left=(problem,), snapshots=0, objects=0, read_bytes=0
        )
    with reported("repair the store"):
        done = mend_format(handle.fs, handle.store_path)
    result = _verify(handle, asked)
    return replace(result, problems=(problem, *result.problems), repaired=(done, *result.repaired))


def _verify(handle: Handle, asked: Asked) -> VerifyResult:
    with opened(handle, "verify the store", recover=False) as pair:
        found = Examination(handle, pair.store, asked.sample, read_data=asked.read_data).run()
    if not (asked.repair and found.problems):
        return _result(found, found)
    from treesnap.ops.repair import Repair

    with (
        opened(handle, "repair the store", writing=True, recover=False) as pair,
        held(
            handle.fs,
            pair.store.layout.collector_lock,
            operation="verify",
            what="The garbage collector",
            wait_s=handle.wait_s,
        ),
    ):
        repair = Repair(handle, pair.store, found)
        repair.run()
    with opened(handle, "verify the store", recover=False) as pair:
        again = Examination(handle, pair.store, asked.sample, read_data=asked.read_data)
        left = again.run(known=found)
    return _result(found, left, repair)


def _result(found: Examination, left: Examination, repair: Repair | None = None) -> VerifyResult:
    return VerifyResult(
        problems=tuple(found.problems),
        left=tuple(left.problems),
        partial=tuple(left.partial),
        repaired=tuple(repair.repaired) if repair is not None else (),
        taken_back=tuple(repair.taken_back) if repair is not None else (),
        snapshots=left.snapshots,
        objects=len(left.checked),
        read_bytes=found.read_bytes,
    )
