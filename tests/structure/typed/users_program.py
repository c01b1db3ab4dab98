"""A program that embeds the library, for type checkers alone: it states which types it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import assert_type

import treesnap
from treesnap.core.handle import AsyncHandle
from treesnap.core.model.entries import ChangeList
from treesnap.core.model.results import (
    CreateResult,
    FileHunks,
    FoundPath,
    RestoreResult,
    StatusResult,
)
from treesnap.core.model.snapshots import SnapshotList


def use(handle: treesnap.Handle) -> None:
    """Uses the methods as they are."""
    made = handle.create(["src"], label="before", session="s", step=3, tags={"a": "1"})
    assert_type(made, CreateResult)
    assert_type(made.snapshot.step, int | None)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert_type(handle.list(kind=treesnap.SnapshotKind.MANUAL, since=since), SnapshotList)
    changes = handle.diff("step:3", session="s")
    assert_type(changes, ChangeList)
    assert_type([change.path_text for change in changes], list[str])
    assert_type(handle.restore("step:3", ["src"], session="s"), RestoreResult)
    hunks = handle.hunks("latest", "src/main.py")
    assert_type(hunks.hunks[0].live_lines, tuple[bytes, ...])
    assert_type(handle.restore_hunks(hunks, [0, 2]), RestoreResult)
    assert_type(handle.describe("latest", "words"), treesnap.Snapshot)
    assert_type(handle.tag("latest", {"a": "1"}, remove=["b"]), treesnap.Snapshot)
    assert changes.to_dict()["changes"]
    with handle.rollback_on_error("step") as held:
        assert_type(held, CreateResult)


async def use_in_a_loop(handle: treesnap.Handle) -> None:
    """Uses the same methods in an event loop."""
    aio = handle.aio
    assert_type(aio, AsyncHandle)
    made = await aio.create(["src"], label="before", session="s", step=3)
    assert_type(made, CreateResult)
    assert_type(await aio.restore("step:3", ["src"], session="s"), RestoreResult)
    assert_type(await aio.hunks("latest", "src/main.py"), FileHunks)
    assert_type(await aio.status(), StatusResult)
    assert_type(await aio.list(session="s"), SnapshotList)
    assert_type(await aio.find("*.py"), tuple[FoundPath, ...])
    assert_type(await aio.delete("latest", "newest"), SnapshotList)
    assert_type(await aio.recover(), str | None)
    pieces = aio.cat("latest", "file")
    assert_type(pieces, AsyncIterator[bytes])
    async for piece in pieces:
        assert_type(piece, bytes)
    async with aio.watch() as watched:
        assert_type(watched, AsyncHandle)
    async with aio.rollback_on_error("step", paths=["src"], session="s") as held:
        assert_type(held, CreateResult)

    assert_type(await decorated_in_a_loop(handle), int)


def decorated(handle: treesnap.Handle) -> int:
    """Uses a block as a decorator, which keeps what the function takes and returns."""

    @handle.rollback_on_error("step")
    def count(words: str) -> int:
        return len(words)

    return count("one two")


async def decorated_in_a_loop(handle: treesnap.Handle) -> int:
    """Uses both kinds of block as decorators of coroutine functions."""

    @handle.rollback_on_error("step")
    async def count(words: str) -> int:
        return len(words)

    @handle.aio.rollback_on_error("step")
    async def count_again(words: str) -> int:
        async with handle.aio.rollback_on_error("inside"):
            return await count(words)

    return await count_again("one two")


async def mistakes(handle: treesnap.Handle) -> None:
    """What a type checker has to find; an ignored error that there is not is one itself."""
    await handle.aio.restore(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await handle.aio.create(lable="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with handle.rollback_on_error():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    with handle.aio.rollback_on_error():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
