"""A double of E2B: its API, and envd, which runs commands and sends files in a sandbox.

Commands are a server stream of Connect: each message has a byte of flags, its length and JSON.
"""

from __future__ import annotations

import base64
import json
import selectors
import struct
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import sandbox_machine

_END = 2
"""The flag of the last message of a stream."""
_SANDBOX = {
    "templateID": "base",
    "sandboxID": "isandbox",
    "clientID": "client",
    "envdVersion": "0.6.9",
    "envdAccessToken": "token",
}


class Request(sandbox_machine.Request):
    def do_GET(self) -> None:  # noqa: N802 - the library's name
        url = urlsplit(self.path)
        if not self.machine.answers:
            self.reply(502, {"message": "The sandbox was not found", "code": 502})
        elif url.path == "/health":
            self.reply(204)
        elif url.path == "/files":
            self._send_file(self.machine.home / parse_qs(url.query)["path"][0])
        else:
            self.reply(404, {"message": f"no {url.path}", "code": 404})

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        data, path = self.body(), urlsplit(self.path).path
        if path in {"/sandboxes", "/v2/sandboxes"}:
            self.reply(201, _SANDBOX)
        elif path.endswith("/pause"):
            self.machine.pause()
            self.reply(204)
        elif path.endswith("/connect"):
            self.machine.resume()
            self.reply(200, _SANDBOX)
        elif not self.machine.answers:
            self.reply(502, {"message": "The sandbox was not found", "code": 502})
        elif path == "/files":
            name = parse_qs(urlsplit(self.path).query)["path"][0]
            self._write_file(self.machine.home / name, data)
        elif path == "/process.Process/Start":
            self._run(json.loads(data[5:])["process"])
        else:
            self.reply(404, {"message": f"no {path}", "code": 404})

    def do_DELETE(self) -> None:  # noqa: N802 - the library's name
        self.machine.die()
        self.reply(204)

    def _send_file(self, path: Path) -> None:
        self.machine.reads.append(str(path))
        try:
            file = path.open("rb")
        except OSError as error:
            self.reply(404, {"message": str(error), "code": 404})
            return
        with file, self.streamed("application/octet-stream") as send:
            while chunk := file.read(1 << 16):
                send(chunk)

    def _write_file(self, path: Path, form: bytes) -> None:
        """Writes the one file of a form."""
        boundary = b"\r\n--" + self.headers["Content-Type"].partition("boundary=")[2].encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(form.partition(b"\r\n\r\n")[2].partition(boundary)[0])
        self.reply(200, [{"name": path.name, "type": "file", "path": str(path)}])

    def _run(self, asked: dict[str, Any]) -> None:
        words = [asked["cmd"], *asked["args"]]
        process = self.machine.start(words, asked.get("envs"), asked.get("cwd"))
        limit_ms = int(self.headers.get("Connect-Timeout-Ms", 0))
        end_s = time.monotonic() + limit_ms / 1000 if limit_ms else None
        try:
            with self.streamed("application/connect+json") as send:
                send(_message({"event": {"start": {"pid": process.pid}}}))
                if self._tell_output(process, send, end_s):
                    code = process.wait()
                    end = {"exitCode": code, "exited": True, "status": f"exit status {code}"}
                    send(_message({"event": {"end": end}}))
                    send(_message({}, _END))
                else:
                    error = {"code": "deadline_exceeded", "message": "the command took too long"}
                    send(_message({"error": error}, _END))
        finally:
            self.machine.end(process)

    def _tell_output(self, process: Any, send: Any, end_s: float | None) -> bool:
        """Sends what a command prints until it ends; returns False where time is up."""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            while selector.get_map():
                if end_s is not None and time.monotonic() > end_s:
                    return False
                for key, _ in selector.select(0.05):
                    data = key.fileobj.read1(1 << 16)  # type: ignore[union-attr]  # they are pipes
                    if data:
                        text = base64.b64encode(data).decode()
                        send(_message({"event": {"data": {key.data: text}}}))
                    else:
                        selector.unregister(key.fileobj)
        return True


def _message(fields: object, flags: int = 0) -> bytes:
    data = json.dumps(fields).encode()
    return struct.pack(">BI", flags, len(data)) + data
