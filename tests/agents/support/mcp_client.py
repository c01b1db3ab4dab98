"""A client of the server of ``snap mcp``, in memory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest

import treesnap
from treesnap.agents.commands.mcp import describe
from treesnap.cli.output.patches import patches

anyio = pytest.importorskip("anyio", reason="the extra 'mcp' is not installed")
mcp = pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")
from treesnap.agents.mcp.server import HistoryServer  # noqa: E402 - only where mcp is

GENERATIONS = ["auto", "legacy"]
"""How a client agrees on the protocol: 2026-07-28, and 2025-11-25."""


@contextmanager
def served(*handles: treesnap.Handle, **options: bool) -> Iterator[HistoryServer]:
    """Yields a server of some roots."""
    options = {"allow_restore": True, "offers_hook": True, "answers_hooks": True} | options
    server = HistoryServer(handles, describe, patches, **options)
    with closing(server):
        yield server


def talk(
    server: HistoryServer, script: Callable[[Any], Awaitable[Any]], mode: str = "legacy"
) -> Any:
    """Returns what a script returns that has a client of the server."""

    async def connected() -> Any:
        async with mcp.Client(server, mode=mode) as client:
            return await script(client)

    return anyio.run(connected)


def call(
    server: HistoryServer, tool: str, arguments: Mapping[str, Any], mode: str = "legacy"
) -> Any:
    """Returns what a tool answers; the client does not look at the schema, which takes long."""
    params = mcp.types.CallToolRequestParams(name=tool, arguments=dict(arguments))
    request = mcp.types.CallToolRequest(params=params)

    async def script(client: Any) -> Any:
        return await client.session.send_request(request, mcp.types.CallToolResult)

    return talk(server, script, mode)


def ask(server: HistoryServer, tool: str, mode: str = "legacy", /, **arguments: Any) -> Any:
    """Returns what a tool answers."""
    return answered(call(server, tool, arguments, mode))


def answered(result: Any) -> Any:
    """Returns the answer in a result that is no error."""
    assert not result.is_error, result.content[0].text
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def refused(server: HistoryServer, tool: str, mode: str = "legacy", /, **arguments: Any) -> Any:
    """Returns the error that a tool answers."""
    result = call(server, tool, arguments, mode)
    assert result.is_error
    (text,) = (item.text for item in result.content)
    assert "Traceback" not in text
    error = json.loads(text)
    assert error.keys() == {"code", "message", "names", "hint", "path"}
    return error


def unreadable(server: HistoryServer, uri: str) -> Any:
    """Returns the error that a resource is answered with."""
    return error_of(server, lambda client: client.read_resource(uri))


def error_of(server: HistoryServer, request: Callable[[Any], Awaitable[Any]]) -> Any:
    """Returns the error of a request that has no answer for errors."""

    async def script(client: Any) -> Any:
        with pytest.raises(mcp.MCPError) as caught:
            await request(client)
        return caught.value

    return talk(server, script)


async def listed(client: Any) -> Any:
    """Returns the tools that a server offers."""
    return (await client.list_tools()).tools
