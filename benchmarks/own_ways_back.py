"""The way back that each host of agents has itself, at its best, without a person at a terminal."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from hosts.drivers import MODEL, Host, merge_json, user_variables
from hosts.model_server import Step
from hosts.namespace import Namespace, Transcript

PROMPT = "tidy up the project"
OF_CALLS = ("print('beta')", "chmod 644 key")
"""What the first and a later call of the turn have in them."""
END: Step = {"text": "ALL-OF-IT-IS-DONE"}
"""What the model says last, which is to be seen in a terminal."""


WAIT_TIMEOUT_S = 300.0


class CannotGoBack(Exception):
    """A host has no way back, or the turn left nothing to go back to."""


def wait_until(is_so: Callable[[], bool]) -> None:
    """Waits until something is so."""
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end, is_so
        time.sleep(0.05)


class OwnWay(ABC):
    """A host in a home directory and its way back."""

    how: ClassVar[str] = ""
    """What goes back, for the table."""
    reason: ClassVar[str] = ""
    """Why there is no way back."""
    stores: ClassVar[tuple[str, ...]] = ()
    """Where the host keeps what it goes back to: patterns below the home directory."""
    variables: ClassVar[Mapping[str, str]] = {}

    def __init__(self, host: Host, network: Namespace, home: Path) -> None:
        self.host = host
        self.network = network
        self.home = home
        self.project = home / "project"

    def turn(self, steps: Sequence[Step]) -> Transcript:
        """Lets the model take steps after one prompt."""
        return self.host.run(
            PROMPT,
            [*steps, END],
            self.home,
            self.project,
            network=self.network,
            variables=self.variables,
        )

    def prepare(self) -> dict[str, str]:
        """Writes the settings of the host; returns its environment."""
        own = self.host.prepare(self.home, self.network.port)
        return {**user_variables(self.home), **self.host.variables, **own, **self.variables}

    def start(self, *words: str) -> str:
        """Runs a program as the user of the host; returns what it printed."""
        ended = self.network.run(words, [], cwd=self.project, variables=self.prepare())
        if ended.code:
            raise CannotGoBack(f"exit code {ended.code}: {(ended.err or ended.out)[-500:]}")
        return ended.out

    def only(self, pattern: str) -> Path:
        """Returns the first path below the home directory with such a name."""
        found = sorted(self.home.glob(pattern))
        if not found:
            raise CannotGoBack(f"the host left no {pattern}")
        return found[0]

    @abstractmethod
    def back(self) -> str:
        """Goes back to before the prompt; returns what the host said."""

    def session(self) -> str | None:
        """Returns the session that goes on after that, or None where that takes a terminal."""
        return None

    def conversation(self) -> str:
        """Returns whether the model of that session is told of the prompt and its calls no more."""
        session = self.session()
        if session is None:
            return "not measured"
        ended = self.host.run(
            "what is next",
            [END],
            self.home,
            self.project,
            network=self.network,
            session=session,
            variables=self.variables,
        )
        if ended.code or "what is next" not in ended.asked:
            raise CannotGoBack(f"the session does not go on: {ended}")
        told = [text in ended.asked for text in (PROMPT, *OF_CALLS)]
        return "no" if all(told) else "partly" if any(told) else "yes"


class ClaudeWay(OwnWay):
    how = "`claude --resume ID --rewind-files MESSAGE`, as `/rewind`; file checkpointing on"
    stores = (".claude/file-history",)
    variables: ClassVar = {"CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING": "1"}

    def back(self) -> str:
        session = self.only(".claude/projects/*/*.jsonl")
        entries = map(json.loads, session.read_text().splitlines())
        prompt = next(entry["uuid"] for entry in entries if entry["type"] == "user")
        return self.start(self.host.path(), "--resume", session.stem, "--rewind-files", prompt)

    def session(self) -> str:
        return self.only(".claude/projects/*/*.jsonl").stem


IN_TERMINAL = """
import fcntl, glob, os, pty, re, select, struct, sys, termios, time
end, saved, order, *words = sys.argv[1:]
pid, terminal = pty.fork()
if not pid:
    os.execv(words[0], words)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 50, 150, 0, 0))
seen = b""
def wait(is_so):
    global seen
    while not (found := is_so()):
        if select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 1 << 16)
    return found
def press(key):
    end_s = time.monotonic() + 4
    os.write(terminal, key)
    wait(lambda: time.monotonic() > end_s)
wait(lambda: glob.glob(saved) and b"Apply this change" in seen)
press(b"\\r")
press(b"\\x19")
wait(lambda: end.encode() in seen)
if os.fork():
    os._exit(0)
for number in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
wait(lambda: os.path.exists(order))
press(b"\\x19")
press(open(order, "rb").read())
seen = b""
os.write(terminal, b"\\r")
said = wait(lambda: re.search(rb"[^\\n]*(Restored|rror|not found)[^\\r]*", seen))
with open(order + ".new", "wb") as file:
    file.write(re.sub(rb"\\x1b[^a-zA-Z]*[a-zA-Z]", b"", said[0]).strip())
os.killpg(pid, 9)
os.rename(order + ".new", order + ".done")
"""
"""Runs Gemini CLI in a terminal: approves an edit once a checkpoint of it is there, and then all
else; stays in the background when the turn is over, until there is a command to type."""

CHECKPOINTS = ".gemini/tmp/*/checkpoints/*.json"


class GeminiWay(OwnWay):
    how = "`/restore CHECKPOINT`, in a terminal where the edit was approved; checkpointing on"
    stores = (".gemini/history", ".gemini/tmp/*/checkpoints")

    def prepare(self) -> dict[str, str]:
        """Switches checkpoints on, which are off by default."""
        variables = super().prepare()
        settings = self.home / ".gemini" / "settings.json"
        general = json.loads(settings.read_text())["general"]
        merge_json(settings, {"general": {**general, "checkpointing": {"enabled": True}}})
        return variables

    def turn(self, steps: Sequence[Step]) -> Transcript:
        """Lets the model take steps in a terminal: without one no checkpoint is made."""
        files = [str(self.home / name) for name in (CHECKPOINTS, "order")]
        terminal = [sys.executable, "-c", IN_TERMINAL, END["text"], *files, self.host.path()]
        return self.network.run(
            [*terminal, "--model", MODEL, "--prompt-interactive", PROMPT],
            [*steps, END],
            cwd=self.project,
            variables=self.prepare(),
        )

    def back(self) -> str:
        """Types the command in the same terminal: checkpoints end with the session."""
        name = self.only(CHECKPOINTS).stem
        (self.home / "order.part").write_text(f"/restore {name}")
        (self.home / "order.part").rename(self.home / "order")
        done = self.home / "order.done"
        wait_until(done.exists)
        return done.read_text(errors="replace")

    def session(self) -> str:
        chat = self.only(".gemini/tmp/*/chats/session-*.jsonl")
        return str(json.loads(chat.read_text().splitlines()[0])["sessionId"])


BY_COPILOT_SDK = """
const [sdk, program, id] = process.argv.slice(1);
const { CopilotClient } = await import(sdk);
const client = new CopilotClient({ connection: { kind: "stdio", path: program } });
const session = await client.resumeSession(id, {
  onPermissionRequest: async () => ({ kind: "approved" }),
  model: process.env.COPILOT_MODEL,
  provider: { type: "openai", baseUrl: process.env.COPILOT_PROVIDER_BASE_URL, apiKey: "none" },
});
const { points } = await session.rpc.history.listRewindPoints();
const point = { eventId: points[0].eventId, mode: "conversation-and-files" };
const { outcome, restoredFiles, skippedFiles } = await session.rpc.history.rewind(point);
console.log(`${outcome}: ${restoredFiles.length} restored, ${skippedFiles.length} skipped`);
process.exit(0);
"""


class CopilotWay(OwnWay):
    how = "`session.history.rewind` of its SDK, as `/rewind`; conversation and files"
    stores = (".copilot/session-state/*/rewind-file-snapshots",)

    def back(self) -> str:
        sdk = self.only(".cache/copilot/pkg/*/*/copilot-sdk/index.js")
        session = self.only(".copilot/session-state/*/events.jsonl").parent.name
        node = ["node", "--input-type=module", "-e", BY_COPILOT_SDK]
        return self.start(*node, str(sdk), self.host.path(), session)

    def session(self) -> str:
        return self.only(".copilot/session-state/*/events.jsonl").parent.name


BY_OPENCODE_SERVER = """
import json, subprocess, sys, urllib.request
words = [sys.argv[1], "serve", "--port", "0"]
server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
address = next(line.split()[-1] for line in server.stdout if "listening on" in line)
def ask(path, body=None):
    request = urllib.request.Request(address + path, headers={"content-type": "application/json"})
    request.data = body and json.dumps(body).encode()
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
session = "/session/" + ask("/session")[0]["id"]
prompt = ask(session + "/message")[0]["info"]["id"]
revert = ask(session + "/revert", {"messageID": prompt})["revert"]
print("HTTP 200 and a diff of", revert["diff"].count("diff --git"), "files")
print(session.split("/")[-1])
server.kill()
"""


class OpencodeWay(OwnWay):
    how = "`POST /session/ID/revert` of `opencode serve`, as `/undo`"
    stores = (".local/share/opencode/snapshot",)
    reverted = ""

    def back(self) -> str:
        said = self.start(sys.executable, "-c", BY_OPENCODE_SERVER, self.host.path())
        self.reverted = said.split()[-1]
        return said

    def session(self) -> str:
        return self.reverted


BY_CLINE_CORE = """
const [core, sessionId, cwd] = process.argv.slice(1);
const { ClineCore } = await import(core);
const cline = await ClineCore.create({ clientName: "benchmark", backendMode: "local" });
const restore = { messages: false, workspace: true };
const done = await cline.restore({ sessionId, checkpointRunCount: 1, cwd, restore });
console.log(`checkpoint ${done.checkpoint.ref.slice(0, 12)}, a ${done.checkpoint.kind}`);
process.exit(0);
"""


class ClineWay(OwnWay):
    how = "`restore` of `@cline/core`, as `/undo`; the workspace"
    stores = ("project/.git/objects", ".cline/data/checkpoint-scratch")

    def back(self) -> str:
        session = self.only(".cline/data/sessions/*").name
        core = self.host.directory / "node_modules" / "@cline" / "core" / "dist" / "index.js"
        node = ["node", "--input-type=module", "-e", BY_CLINE_CORE]
        return self.start(*node, str(core), session, str(self.project))


class CodexWay(OwnWay):
    reason = (
        "none: `codex features list` says `undo  removed`, and `thread/revert` of its app server"
        " documents that it “does not revert local file changes”"
    )

    def back(self) -> str:
        raise CannotGoBack(self.reason)


OWN_WAYS: dict[str, type[OwnWay]] = {
    "claude": ClaudeWay,
    "codex": CodexWay,
    "gemini": GeminiWay,
    "copilot": CopilotWay,
    "opencode": OpencodeWay,
    "cline": ClineWay,
}
