"""Doubles of hosts that are asked to take a conversation back; run as a program, named like one.

Each speaks its protocol as the released host does, and refuses what that refuses: a thread that
was not resumed, a prompt that is not there. ``DOUBLE`` in the environment is a JSON object: ``how``
it behaves, the ``session`` that it has, its ``directory``, ``prompts`` as it lists them, and a
``log`` to which it adds what it is asked, a line each. It imports nothing of treesnap.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

DOUBLE: dict[str, Any] = json.loads(os.environ.get("DOUBLE", "{}"))
HOW = DOUBLE.get("how", "")
PROMPTS: list[dict[str, str]] = DOUBLE.get("prompts", [])
NEW_SESSION = "ses_new"


def note(*words: object) -> None:
    """Adds a line to the log."""
    with Path(DOUBLE["log"]).open("a") as file:
        file.write(json.dumps(words) + "\n")


def misbehave(method: str) -> None:
    """Does what no host should, at the call that ``how`` names."""
    what, _, at = HOW.partition(" ")
    if at != method:
        return
    if what == "hangs":
        note(HOW)
        if DOUBLE.get("child"):
            os.spawnv(os.P_NOWAIT, "/bin/sleep", ["sleep", "1000"])
        time.sleep(1000)
    if what == "dies":
        head = b"Content-Length: 100\r\n\r\n" if NAME == "copilot" else b""
        sys.stdout.buffer.write(head + b'{"id"')
        sys.stdout.buffer.flush()
        os._exit(1)
    if what == "floods":
        while True:
            sys.stdout.buffer.write(b"x" * (1 << 20))
    if what == "babbles":
        sys.stdout.buffer.write(b"\xff[[[[\r\n\r\n")
        sys.stdout.buffer.flush()
    if what == "asks":  # and never reads what it is answered
        while True:
            say({"id": 1, "method": "permission/ask", "params": {"why": "x" * 100}})


def say(message: dict[str, Any]) -> None:
    """Writes a message in the form of the host."""
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    head = b"Content-Length: %d\r\n\r\n" % len(data) if NAME == "copilot" else b""
    sys.stdout.buffer.write(head + data + (b"" if head else b"\n"))
    sys.stdout.buffer.flush()


def heard() -> dict[str, Any] | None:
    """Returns the next message, or None at the end."""
    line = sys.stdin.buffer.readline()
    if NAME == "copilot" and line:
        sys.stdin.buffer.readline()
        line = sys.stdin.buffer.read(int(line.split(b":")[1]))
    return json.loads(line) if line else None


def speak() -> None:
    """Answers messages until there are no more."""
    has_begun = is_resumed = False
    while (message := heard()) is not None:
        method, parameters = message.get("method", ""), message.get("params", {})
        note(method, parameters)
        if "id" not in message:
            continue
        misbehave(method)
        say({"method": "warning", "params": {"message": "a host says much"}})
        answer: dict[str, Any] = {}
        problem = None
        session = parameters.get("threadId", parameters.get("sessionId"))
        if method in ("initialize", "connect"):
            has_begun = True
        elif not has_begun:
            problem = "Not initialized"
        elif session != DOUBLE["session"]:
            problem = f"no session found for {session}"
        elif method in ("thread/resume", "session.resume"):
            is_resumed = HOW != "busy" or NAME != "codex"
            if not is_resumed:
                problem = f"thread {session} already has an active writer"
            answer = {"cwd": DOUBLE["directory"]}
            data = {"alreadyInUse": HOW == "busy", "context": answer}
            event = {"type": "session.resume", "data": data}
            if NAME == "copilot" and HOW != "silent":
                say({"method": "session.event", "params": {"event": event}})
        elif not is_resumed:
            problem = f"thread not found: {session}"
        elif method == "thread/revert":
            cut(parameters["beforeTurnId"])
            problem = None if HOW != "unknown" else "unknown variant `thread/revert`"
            if parameters["beforeTurnId"] not in [each["id"] for each in PROMPTS]:
                problem = f"turn not found: {parameters['beforeTurnId']}"
        elif method == "session.history.listRewindPoints":
            answer = {
                "points": [
                    {"eventId": each["id"], "userMessage": each["text"], "timestamp": each["time"]}
                    for each in PROMPTS
                ]
            }
        elif method == "session.history.rewind":
            assert parameters["mode"] == "conversation"
            cut(parameters["eventId"])
            answer = {"outcome": "session-busy" if HOW == "working" else "success"}
        else:
            problem = f"unknown method {method}"
        error = {"error": {"code": -32600, "message": problem}}
        say({"id": message["id"], **(error if problem else {"result": answer})})


def cut(prompt: str) -> None:
    note("cut", prompt)


class Handler(BaseHTTPRequestHandler):
    """One request to the double of opencode; it keeps connections open, as that does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path, _, query = self.path.partition("?")
        note(self.command, path, query, body.decode())
        misbehave(self.command)
        login = f"{os.environ['OPENCODE_SERVER_USERNAME']}:{os.environ['OPENCODE_SERVER_PASSWORD']}"
        wanted = "Basic " + base64.b64encode(login.encode()).decode()
        parts = path.strip("/").split("/")
        known = [each["id"] for each in PROMPTS]
        if self.headers.get("authorization") != wanted:
            status, answer = 401, {}
        elif parts[1] != DOUBLE["session"]:
            status, answer = 404, {"data": {"message": f"Session not found: {parts[1]}"}}
        elif parts[2:3] == ["message"] and parts[3] not in known:
            status, answer = 404, {"data": {"message": f"Message not found: {parts[3]}"}}
        elif parts[2:3] == ["message"]:
            status, answer = 200, {"info": {"role": "user"}}
        elif parts[2:3] == ["fork"]:
            status, answer = 200, {"id": "../x" if HOW == "odd" else NEW_SESSION}
        else:
            status, answer = 200, {"directory": DOUBLE["directory"]}
        data = json.dumps(answer).encode()
        self.send_response(status)
        size_bytes = 10**15 if f"announces {self.command}" == HOW else len(data)
        self.send_header("content-length", str(size_bytes))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def serve() -> None:
    """Serves until it is killed."""
    misbehave("serve")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    sys.stdout.write(f"opencode server listening on {address}\n")
    sys.stdout.flush()
    note("environment", os.environ.get("SNAP_DISABLE"))
    server.serve_forever()


NAME = Path(sys.argv[0]).name if sys.argv else ""

if __name__ == "__main__":
    note("words", *sys.argv[1:])
    (serve if NAME == "opencode" else speak)()
