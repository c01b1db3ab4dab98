"""``snap mcp`` as a host starts it: its roots, its streams, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import treesnap
from state import tree_state
from treesnap.cli.main import execute
from treesnap.testing.children import in_child

pytestmark = pytest.mark.sampled(10)

pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")

TIMEOUT_S = 60


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "text").write_text("one\n")
    return root


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A home, and a store beside it."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)


@pytest.fixture
def failed(environment, capfd):
    """Runs ``snap mcp --json`` where it cannot start, and returns exit code and error code."""

    def run(*words):
        code = execute(["mcp", "--json", *map(str, words)])
        return code, json.loads(capfd.readouterr().out)["code"]

    return run


def test_dangerous_directories_are_refused(failed, tmp_path, monkeypatch, root):
    (tmp_path / "link").symlink_to("/")

    assert failed("/") == (3, "dangerous-root")
    assert failed(tmp_path / "link") == (3, "dangerous-root")
    assert failed(tmp_path / "home") == (3, "dangerous-root")
    assert failed(root, "/etc") == (3, "dangerous-root")
    assert failed("-C", "/") == (3, "dangerous-root")
    assert failed(tmp_path / "nosuch") == (5, "root-not-found")
    monkeypatch.chdir(tmp_path / "home")
    assert failed() == (3, "dangerous-root")
    monkeypatch.chdir(root)
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", "/usr")
    assert failed() == (3, "dangerous-root")
    assert not (tmp_path / "store").exists()


def test_without_the_package_it_says_which_one(environment, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "treesnap.agents.mcp.server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel.helper_types", None)

    assert execute(["mcp"]) == 1

    said = capfd.readouterr().err
    assert (
        "'mcp.server.lowlevel.helper_types' is missing; type: pip install 'treesnap[mcp]'" in said
    )


def test_a_host_talks_to_it_over_its_streams(environment, tmp_path, root):
    """Also when it writes nonsense; it ends when the host closes the stream.

    The root is the captured directory above the one in which the host works.
    """
    (root / "sub").mkdir()
    (root / "other").write_text("other\n")
    before = tree_state(root)
    treesnap.open(root).create()
    (root / "other").unlink()
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }
    calls = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "restore_plan"}},
        {"id": "three", "method": "no/such", "params": {}},
    ]
    calls[2]["params"]["arguments"] = {"ref": "latest"}
    command = [sys.executable, "-m", "treesnap", "mcp", "--allow-restore"]
    with subprocess.Popen(
        command,
        cwd="/",
        env={**os.environ, "CLAUDE_PROJECT_DIR": str(root / "sub")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        for call in calls:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **call}).encode() + b"\n")
        process.stdin.write(b"nonsense\n\xff\xfe{\n" + b"[" * 10_000 + b"\n")
        process.stdin.flush()
        answers = {}
        while not {1, 2, "three"} <= answers.keys():
            answer = json.loads(process.stdout.readline())
            answers[answer.get("id")] = answer
        token = answers[2]["result"]["structuredContent"]["token"]
        params = {"name": "restore_apply", "arguments": {"token": token}}
        last = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": params}
        process.stdin.write(json.dumps(last).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["structuredContent"]["created"] == 1
        rest, complaints = process.communicate(timeout=TIMEOUT_S)

    assert "error" in answers["three"]
    assert rest == b""
    assert b"Traceback" not in complaints
    assert process.returncode == 0
    assert tree_state(root) == before


def test_a_request_that_cannot_be_read_is_answered(environment, root):
    """A client waits for the answer to each id; what has none, and an answer, gets none."""
    label = r'{"name": "checkpoint", "arguments": {"label": "\ud800"}}'
    lines = [
        '{"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}',
        '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": ' + label + "}",
        '{"jsonrpc": "2.0", "id": "three"}',
        r'{"jsonrpc": "2.0", "id": "\ud800"}',
        '{"jsonrpc": "2.0", "id": true, "method": 5}',
        '{"jsonrpc": "2.0", "id": 4, "result": 5}',
        "[1]",
        '{"jsonrpc": "2.0", "id": 9, "method": "server/discover", "params": {}}',
    ]

    with subprocess.Popen(
        [sys.executable, "-m", "treesnap", "mcp", str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write("\n".join([*lines, ""]).encode())
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(4)]
        rest, complaints = process.communicate(timeout=TIMEOUT_S)

    found = {answer["id"]: answer for answer in answers}
    assert found.keys() == {1, 2, "three", 9}
    for number in (2, "three"):
        assert "The request cannot be read: " in found[number]["error"]["message"]
    assert (rest, process.returncode) == (b"", 0)
    assert b"Traceback" not in complaints


def test_ctrl_c_ends_it_at_once(environment, root):
    """Although a thread waits for the host's next line."""
    hello = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}

    def serve():
        ends = [os.pipe(), os.pipe()]
        os.write(ends[0][1], json.dumps(hello).encode() + b"\n")
        os.dup2(ends[0][0], 0)
        os.dup2(ends[1][1], 1)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")

        def interrupt():
            os.read(ends[1][0], 1)  # it has begun to serve
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        execute(["mcp", str(root)])

    with pytest.raises(RuntimeError, match=f"ended with -{signal.SIGINT}"):
        in_child(serve)
