"""A model that says what a script says, for hosts that cannot reach a real one.

It speaks what the hosts speak: Messages (``/messages``), Responses (``/responses``), Chat
Completions (``/chat/completions``) and Gemini (``:generateContent``, ``:streamGenerateContent``).
Run as a program inside a network namespace: ``model_server.py DIRECTORY`` switches the loopback
device on, writes its port to ``DIRECTORY/port``, and serves until it is killed.

``DIRECTORY/script.json`` is a list of steps, ``{"tool", "arguments"}`` or ``{"text"}``. A request
that offers tools is a turn, and takes the next step; the last one is repeated, and one with
``"until"`` is while no turn has that word in it, such as the name of a tool of a server that has to
start. Before a step with ``"meanwhile"`` it writes files as a user, each path with its text; one
with ``"after"`` is taken when there is a file at that path. In Responses a step may be several
calls at once, ``{"at_once": [STEP, STEP]}``. Any other request (a title for the session, say) is
answered with one word.
``DIRECTORY/requests.jsonl`` has a line for each request: its path, whether it was a turn, and its
body.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Step = dict[str, Any]
Record = dict[str, Any]

SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x41
USAGE = {"input_tokens": 1, "output_tokens": 1}
WAIT_S = 300
OTHER_ANSWER: Step = {"text": "scripted"}
"""What is said to requests that offer no tools."""


def main(directory: Path) -> None:
    """Serves in this network namespace, until killed."""
    with socket.socket() as any_socket:
        flags = struct.pack("16sh", b"lo", IFF_UP_RUNNING)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, flags)
    server = Server(directory)
    unnamed = directory / "port.new"
    unnamed.write_text(str(server.server_port))
    unnamed.rename(directory / "port")
    server.serve_forever()


class Server(ThreadingHTTPServer):
    """Answers requests in the order of a script."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory = directory
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.token = secrets.token_hex(4)  # so that no id of a call is used twice

    def next_step(self, path: str, body: Record) -> tuple[int, Step]:
        """Records a request; returns a number of its own and what to answer."""
        is_turn = bool(body.get("tools"))
        with self.lock:
            log = self.directory / "requests.jsonl"
            lines = log.read_text().splitlines() if log.exists() else []
            with log.open("a") as file:
                file.write(json.dumps({"path": path, "is_turn": is_turn, "body": body}) + "\n")
            script: list[Step] = json.loads((self.directory / "script.json").read_text())
        if not is_turn:
            return next(self.numbers), OTHER_ANSWER
        position = 0
        for turn in [*map(json.loads, lines), {"is_turn": True, "body": body}]:
            step = script[min(position, len(script) - 1)]
            position += turn["is_turn"] and step.get("until", "") in json.dumps(turn["body"])
        return next(self.numbers), step


class Handler(BaseHTTPRequestHandler):
    """One request of a host."""

    server: Server

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        form = next((form for end, form in FORMS.items() if path.endswith(end)), None)
        if form is None:
            self.send_error(404)
            return
        body = json.loads(data)
        number, step = self.server.next_step(path, body)
        for name, text in step.get("meanwhile", {}).items():
            Path(name).write_text(text)
        wait_for(step.get("after"))
        whole, events = form(f"{self.server.token}x{number}", step)
        if body.get("stream") or path.endswith(":streamGenerateContent"):
            self._send("text/event-stream", "".join(events).encode())
        else:
            self._send("application/json", json.dumps(whole).encode())

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


def wait_for(path: str | None) -> None:
    """Waits until there is a file, if not for too long."""
    deadline = time.monotonic() + WAIT_S
    while path is not None and not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _event(value: Record, *, named: bool = True) -> str:
    name = f"event: {value['type']}\n" if named else ""
    return f"{name}data: {json.dumps(value)}\n\n"


def _messages(name: str, step: Step) -> tuple[Record, Iterator[str]]:
    if "tool" in step:
        whole = {"type": "tool_use", "id": f"toolu_{name}", "name": step["tool"]}
        begin, block = whole | {"input": {}}, whole | {"input": step["arguments"]}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step["arguments"])}
        reason = "tool_use"
    else:
        block = {"type": "text", "text": step["text"]}
        begin, delta = block | {"text": ""}, {"type": "text_delta", "text": step["text"]}
        reason = "end_turn"
    message = {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    }
    end = {"stop_reason": reason, "stop_sequence": None}
    events = (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": begin},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": USAGE},
        {"type": "message_stop"},
    )
    return message | end | {"content": [block]}, map(_event, events)


def _responses(name: str, step: Step) -> tuple[Record, Iterator[str]]:
    steps = step.get("at_once", [step])
    items = [_item(f"{name}{at or ''}", one) for at, one in enumerate(steps)]
    response = {"id": f"resp_{name}", "object": "response", "model": "scripted"}
    whole = response | {
        "status": "completed",
        "output": items,
        "usage": USAGE | {"total_tokens": 2},
    }
    events = (
        {"type": "response.created", "response": response | {"status": "in_progress"}},
        *(
            {"type": "response.output_item.done", "output_index": at, "item": item}
            for at, item in enumerate(items)
        ),
        {"type": "response.completed", "response": whole},
    )
    return whole, map(_event, events)


def _item(name: str, step: Step) -> Record:
    if "tool" in step:
        item = {
            "type": "function_call",
            "id": f"fc_{name}",
            "call_id": f"call_{name}",
            "name": step["tool"],
            "arguments": json.dumps(step["arguments"]),
        }
        if "namespace" in step:  # of a tool of an MCP server
            item["namespace"] = step["namespace"]
    else:
        text = {"type": "output_text", "text": step["text"], "annotations": []}
        item = {"type": "message", "id": f"m_{name}", "role": "assistant", "content": [text]}
    return item


def _chat_completions(name: str, step: Step) -> tuple[Record, Iterator[str]]:
    said: Record = {"role": "assistant"}
    reason = "stop"
    if "tool" in step:
        function = {"name": step["tool"], "arguments": json.dumps(step["arguments"])}
        call = {"index": 0, "id": f"call_{name}", "type": "function", "function": function}
        said["tool_calls"] = [call]
        reason = "tool_calls"
    else:
        said["content"] = step["text"]
    whole = {"id": f"chatcmpl-{name}", "created": 1, "model": "scripted"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunk = whole | {"object": "chat.completion.chunk"}
    events = (
        chunk | {"choices": [{"index": 0, "delta": said, "finish_reason": None}]},
        chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
    )
    choice = {"index": 0, "message": said, "finish_reason": reason}
    lines = (*(_event(value, named=False) for value in events), "data: [DONE]\n\n")
    return whole | {"object": "chat.completion", "choices": [choice], "usage": usage}, iter(lines)


def _gemini(name: str, step: Step) -> tuple[Record, Iterator[str]]:
    if "tool" in step:
        part = {"functionCall": {"name": step["tool"], "args": step["arguments"]}}
    else:
        part = {"text": step["text"]}
    whole = {
        "responseId": name,
        "modelVersion": "scripted",
        "candidates": [
            {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    }
    return whole, iter([_event(whole, named=False)])


FORMS = {
    "/messages": _messages,
    "/responses": _responses,
    "/chat/completions": _chat_completions,
    ":generateContent": _gemini,
    ":streamGenerateContent": _gemini,
}
"""By the end of a path: what makes an answer of a step, whole and as a stream."""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
