"""``snap mcp`` under the tools of the protocol's authors: their conformance suite and inspector."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosts.drivers import NPM, CannotInstall, install_package

pytest.importorskip("mcp", reason="the extra treesnap[mcp] is not installed")

EXPECTED = Path(__file__).with_name("mcp_conformance.yaml")
PACKAGES = (
    "@modelcontextprotocol/conformance@latest",
    "@modelcontextprotocol/inspector@latest",
    "node@24",
)
OVER_HTTP = """
import sys
import treesnap
import uvicorn
from treesnap.agents.mcp.server import HistoryServer
from treesnap.agents.commands.mcp import describe
from treesnap.cli.output.patches import patches

root, store, fd = sys.argv[1:]
handles = [treesnap.open(root, store)]
switches = dict(allow_restore=True, offers_hook=True, answers_hooks=True)
server = HistoryServer(handles, describe, patches, **switches)
uvicorn.run(server.streamable_http_app(), fd=int(fd), log_level="warning")
"""
"""The conformance suite reaches servers by HTTP only; ``snap mcp`` does not offer that."""
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Path:
    """The directory of the suites' programs."""
    chosen = request.config.getoption("--hosts-dir", None)
    directory = (chosen.absolute() if chosen else request.config.cache.mkdir("hosts")) / "mcp"
    found = directory / "node_modules" / ".bin"
    if not (found / "mcp-inspector").exists():
        try:
            install_package([*NPM, "--prefix", str(directory), *PACKAGES])
        except CannotInstall as error:
            pytest.skip(f"the suites of the protocol cannot be installed: {error}")
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("text")
    return root


@pytest.fixture
def url(root: Path, tmp_path: Path) -> Iterator[str]:
    """A server; who connects before it is ready waits in its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        fd = listening.fileno()
        words = [sys.executable, "-c", OVER_HTTP, root, tmp_path / "store", str(fd)]
        with subprocess.Popen(words, pass_fds=[fd]) as server:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
            server.kill()


def test_fails_no_scenario_of_the_conformance_suite_without_a_reason(programs, url):
    words = ["conformance", "server", "--url", url, "--expected-failures", EXPECTED]
    done = subprocess.run(
        [programs / "node", programs / words[0], *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert done.returncode == 0, done.stdout[-4000:]


def inspect(programs: Path, root: Path, *words: str) -> Any:
    """Returns what the inspector's command line prints of a running server."""
    snap = [Path(sys.executable).with_name("snap"), "--store", root.with_name("store"), "mcp", root]
    done = subprocess.run(
        [programs / "node", programs / "mcp-inspector", "--cli", *snap, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_inspector_lists_calls_and_reads(programs, root):
    tools = inspect(programs, root, "--method", "tools/list")
    called = inspect(
        programs, root, "--method", "tools/call", "--tool-name", "checkpoint",
        "--tool-arg", "label=first",
    )  # fmt: skip
    snapshot = called["structuredContent"]["id"]
    read = inspect(programs, root, "--method", "resources/read", "--uri", f"snap://{snapshot}/file")
    prompts = inspect(programs, root, "--method", "prompts/list")

    assert "restore_plan" in {tool["name"] for tool in tools["tools"]}
    assert read["contents"][0]["text"] == "text"
    assert {prompt["name"] for prompt in prompts["prompts"]} == {"rewind", "undo"}
