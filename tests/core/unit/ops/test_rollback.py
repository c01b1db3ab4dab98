"""``rollback_on_error`` as a decorator protects what it is put on, or is refused."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial, wraps

import pytest

from treesnap.core.model.snapshots import SnapshotKind

CHANGED = b"changed"


@pytest.fixture
def file(root):
    return root / "one"


def spoil(path):
    path.write_bytes(CHANGED)
    raise InterruptedError


class Tool:
    """Something callable that is not a function."""

    def __init__(self, path):
        self.path = path

    async def __call__(self):
        await asyncio.sleep(0)
        spoil(self.path)


class Lines:
    """Something callable that makes a generator."""

    def __call__(self):
        yield b"line"


async def step_on(path):
    await asyncio.sleep(0)
    spoil(path)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("block_of", [lambda handle: handle, lambda handle: handle.aio])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (lambda _file: step_on, 1),
        (lambda file: partial(step_on, file), 0),
        (Tool, 0),
    ],
    ids=["function", "partial", "object"],
)
def test_each_call_of_a_coroutine_function_is_rolled_back(handle, file, block_of, kind, arguments):
    decorated = block_of(handle).rollback_on_error("step")(kind(file))

    for _ in range(2):
        with pytest.raises(InterruptedError):
            asyncio.run(decorated(*[file] * arguments))

        assert file.read_bytes() == b"one"
    labels = [snapshot.label for snapshot in handle.list(kind=SnapshotKind.RUN)]
    assert labels == ["step", "step"]


def test_a_coroutine_function_is_one_still_and_returns_its_value(handle, file):
    @handle.rollback_on_error()
    async def step(words):
        """Says what it does."""
        file.write_bytes(CHANGED)
        await asyncio.sleep(0)
        return words

    assert inspect.iscoroutinefunction(step)
    assert step.__doc__ == "Says what it does."
    assert asyncio.run(step("done")) == "done"
    assert file.read_bytes() == CHANGED


def test_calls_of_a_coroutine_function_wait_for_each_other(make_handle, file):
    @make_handle(wait_s=30).rollback_on_error()
    async def add(text, *, fails):
        before = file.read_bytes()
        await asyncio.sleep(0)
        file.write_bytes(before + text)
        if fails:
            raise InterruptedError

    async def use():
        calls = [add(b"%d" % number, fails=number == 1) for number in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    ended = asyncio.run(use())

    assert [type(item) for item in ended] == [type(None), InterruptedError, type(None)]
    assert sorted(file.read_bytes()) == sorted(b"one02")


def test_each_call_of_a_function_is_rolled_back(handle, file):
    decorated = handle.rollback_on_error("step")(partial(spoil, file))

    for _ in range(2):
        with pytest.raises(InterruptedError):
            decorated()

        assert file.read_bytes() == b"one"


def lines():
    yield b"line"


async def pieces():
    yield b"piece"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lines, r"'lines' .* makes a generator, .* 'with handle\.rollback"),
        (partial(lines), r"makes a generator"),
        (Lines(), r"makes a generator"),
        (pieces, r"'pieces' .* makes an async generator, .* 'async with handle\.aio\.rollback"),
    ],
    ids=["generator", "partial", "object", "async generator"],
)
@pytest.mark.parametrize("block_of", [lambda handle: handle, lambda handle: handle.aio])
def test_what_runs_after_the_call_is_refused(handle, block_of, function, message):
    with pytest.raises(TypeError, match=message):
        block_of(handle).rollback_on_error()(function)


def test_a_function_that_returns_a_coroutine_is_refused_when_it_does(handle, file):
    async def step():
        await asyncio.sleep(0)

    @handle.rollback_on_error()
    @wraps(step)
    def wrapper():
        file.write_bytes(CHANGED)
        return step()

    with pytest.raises(TypeError, match=r"'.*step': it returned a coroutine"):
        wrapper()

    assert file.read_bytes() == b"one"


def test_the_block_of_a_loop_decorates_no_plain_function(handle):
    with pytest.raises(TypeError, match=r"'spoil', which is not a coroutine function"):
        handle.aio.rollback_on_error()(spoil)


def test_async_with_a_block_that_blocks_names_the_one_that_does_not(handle, store_path):
    async def use():
        async with handle.rollback_on_error():
            pass

    with pytest.raises(TypeError, match=r"async with handle\.aio\.rollback_on_error"):
        asyncio.run(use())

    assert not store_path.exists()


def test_with_a_block_of_a_loop_names_async_with(handle, store_path):
    with pytest.raises(TypeError, match="'async with'"), handle.aio.rollback_on_error():
        pass
    with pytest.raises(TypeError, match="'async with'"), handle.aio.watch():
        pass

    assert not store_path.exists()
