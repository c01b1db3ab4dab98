"""A double of Daytona: its API, and the toolbox, which runs commands and sends files."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import sandbox_machine

_BOUNDARY = "boundary-of-parts"


class Request(sandbox_machine.Request):
    def do_GET(self) -> None:  # noqa: N802 - the library's name
        path = urlsplit(self.path).path
        if path == "/api/sandbox/box":
            self.reply(200, self._sandbox())
        else:
            self.reply(404, {"message": f"no {path}", "statusCode": 404})

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        data, path = self.body(), urlsplit(self.path).path
        if path == "/api/sandbox":
            self.reply(200, self._sandbox())
        elif path in {"/api/sandbox/box/stop", "/api/sandbox/box/start"}:
            if path.endswith("/stop"):
                self.machine.pause()
            else:
                self.machine.resume()
            self.reply(200, self._sandbox())
        elif not self.machine.answers:
            self.reply(400, {"message": "The sandbox is not running", "statusCode": 400})
        elif path == "/toolbox/box/process/execute":
            self._run(json.loads(data))
        elif path == "/toolbox/box/process/code-run":
            code = shlex.quote(json.loads(data)["code"])
            self._run({"command": f"python3 -c {code}"})
        elif path == "/toolbox/box/process/session":
            self.reply(201)
        elif path.startswith("/toolbox/box/process/session/") and path.endswith("/exec"):
            self._run_in_session(json.loads(data)["command"])
        elif path == "/toolbox/box/files/bulk-download":
            self._send_files(json.loads(data)["paths"])
        else:
            self.reply(404, {"message": f"no {path}", "statusCode": 404})

    def do_DELETE(self) -> None:  # noqa: N802 - the library's name
        self.machine.die()
        self.reply(200, self._sandbox())

    def _run(self, asked: dict[str, object]) -> None:
        words = ["/bin/sh", "-c", str(asked["command"])]
        process = self.machine.start(
            words, asked.get("envs"), asked.get("cwd"), stderr=subprocess.STDOUT
        )
        try:
            output, _ = process.communicate(timeout=asked.get("timeout") or 10)
        except subprocess.TimeoutExpired:
            self.reply(408, {"message": "command execution timeout", "statusCode": 408})
        else:
            self.reply(200, {"exitCode": process.returncode, "result": output.decode()})
        finally:
            self.machine.end(process)

    def _run_in_session(self, command: str) -> None:
        process = self.machine.start(["/bin/sh", "-c", command], stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        self.machine.end(process)
        self.reply(200, {"cmdId": "1", "exitCode": process.returncode, "output": output.decode()})

    def _send_files(self, paths: list[str]) -> None:
        with self.streamed(f"multipart/form-data; boundary={_BOUNDARY}") as send:
            for path in paths:
                self.machine.reads.append(path)
                kind = "file" if Path(path).is_file() else "error"
                send(
                    f"--{_BOUNDARY}\r\nContent-Type: application/octet-stream\r\n"
                    "Content-Disposition: form-data; "
                    f'name="{kind}"; filename="{path}"\r\n\r\n'.encode()
                )
                if kind == "error":
                    send(b"file not found")
                else:
                    with Path(path).open("rb") as file:
                        while chunk := file.read(1 << 16):
                            send(chunk)
                send(b"\r\n")
            send(f"--{_BOUNDARY}--\r\n".encode())

    def _sandbox(self) -> dict[str, object]:
        state = "started"
        if self.machine.is_dead:
            state = "destroyed"
        elif self.machine.is_paused:
            state = "stopped"
        return {
            "id": "box",
            "organizationId": "organization",
            "name": "box",
            "user": "daytona",
            "env": {},
            "labels": {},
            "public": False,
            "networkBlockAll": False,
            "kvm": False,
            "target": "local",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 1,
            "state": state,
            "toolboxProxyUrl": f"http://{self.headers['Host']}/toolbox",
        }
