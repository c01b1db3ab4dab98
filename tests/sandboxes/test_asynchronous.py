"""The asynchronous clients of the providers: 'async with', and the event loop goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from treesnap.core.model.errors import InvalidArgument


@asynccontextmanager
async def client_of(scene: Any) -> AsyncIterator[Any]:
    """Yields an asynchronous client for the machine of a scene."""
    url = scene.address(scene.machine)
    if scene.provider == "e2b":
        import e2b

        yield await e2b.AsyncSandbox.create()
        return
    import daytona

    config = daytona.DaytonaConfig(api_key="key", api_url=f"{url}/api", target="local")
    async with daytona.AsyncDaytona(config) as account:
        yield await account.create()


async def run(scene: Any, client: Any, command: str, **options: Any) -> None:
    options["cwd"] = str(scene.project)
    method = client.commands.run if scene.provider == "e2b" else client.process.exec
    await method(command, **options)


def test_the_history_comes_here_while_the_loop_goes_on(scene):
    async def agent() -> tuple[Any, float]:
        gap_max_s = 0.0

        async def tick() -> None:
            nonlocal gap_max_s
            last_s = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                gap_max_s = max(gap_max_s, time.monotonic() - last_s)
                last_s = time.monotonic()

        async with client_of(scene) as scene.client:
            ticking = asyncio.create_task(tick())
            async with scene.recorded() as history:
                await run(scene, scene.client, "echo roses > plants")
                await asyncio.gather(
                    *(run(scene, scene.client, f"touch file-{number}") for number in range(3))
                )
                await asyncio.to_thread(history.checkpoint, "mine")
            ticking.cancel()
        return history, gap_max_s

    history, gap_max_s = asyncio.run(agent())

    there = scene.there()
    assert history.gaps == []
    assert history.handed_out.newest_id == there[0].id
    assert sorted(snapshot.record.step for snapshot in there) == list(range(7))
    assert there[1].record.label == "mine"
    assert gap_max_s < 1
    assert {snapshot.id for snapshot in there} <= {snapshot.id for snapshot in scene.here()}


def test_a_checkpoint_that_would_wait_for_its_own_loop_is_refused(scene):
    async def agent() -> None:
        async with client_of(scene) as scene.client, scene.recorded() as history:
            history.checkpoint("mine")

    with pytest.raises(InvalidArgument, match="to_thread"):
        asyncio.run(agent())


def test_the_form_of_with_fits_the_client(scene):
    async def agent() -> None:
        async with client_of(scene) as client:
            recording = scene.recorded()
            with pytest.raises(InvalidArgument, match="write 'with'"):
                await recording.__aenter__()
            scene.client = client
            with pytest.raises(InvalidArgument, match="write 'async with'"):
                scene.recorded().__enter__()

    asyncio.run(agent())
