"""The conversation of a session, which goes back to before a prompt where its host has a call.

    files first            ``rewind`` has undone what the session changed
    find the program       on the PATH alone
    ask the host           it refuses a session that is open elsewhere, or a prompt it has not
    say both               what was asked of the host and failed leaves the files as they are

No file of a host is written here, and none of its own checkpoints is used: each call changes the
conversation alone. Which calls there are, and with which version each was tried, is one table.
What is known of a prompt came from a store, which is not trusted: ids are sent to a host only
where they have its shape, and only for a session that works in this root.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from treesnap.agents.host_process import (
    SAID_SIZE_MAX,
    HostFailed,
    HostProcess,
    HostRefused,
    HostSaid,
    JsonTalk,
    host_program,
)
from treesnap.agents.hosts.base import one_line
from treesnap.agents.sessions import AgentSession
from treesnap.core.model import treepath
from treesnap.core.model.errors import printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.history.steps import AgentStep, EventPhase

TIMEOUT_S = 30.0
"""How long a host has to take a conversation back."""
_REASON_LENGTH_MAX = 200
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OPENCODE_SESSION = re.compile(r"ses_[0-9A-Za-z]{1,64}")
_OPENCODE_MESSAGE = re.compile(r"msg_[0-9A-Za-z]{1,64}")
_OPENCODE_LISTENS = re.compile(rb"listening on http://127\.0\.0\.1:([0-9]{1,5})\s*")
_SAME_PROMPT_NS = 60 * 1_000_000_000
"""A hook captures for a prompt no later than this after the host has noted it."""
_CONNECT_S = 5.0


class ConversationOutcome(StrEnum):
    """What became of a conversation."""

    BACK = "back"
    """It ends before the prompt."""
    FORKED = "forked"
    """So does a new session of its own; the other one is as it was."""
    LEFT = "left"
    """It is as it was, because nothing else was asked for."""
    FAILED = "failed"
    """It is as it was, though it was to go back."""
    UNKNOWN = "unknown"
    """The host was asked, and did not say whether it went back."""


class WayKind(StrEnum):
    """What takes a conversation back."""

    CUT = "cut"
    """A call, while the session is not open."""
    FORK = "fork"
    """A call that leaves the session as it was, open or not."""
    KEYS = "keys"
    """The user, in the host."""


class Conversation(NamedTuple):
    """A conversation, and what became of it."""

    outcome: ConversationOutcome
    way: WayKind
    session: str
    """The session in which it goes on."""
    reason: str | None = None
    """Why it is as it was, though it was to go back; or why that is not known."""
    keys: str | None = None
    """What to press in the host to take it back there, if that is known."""
    command: tuple[str, ...] | None = None
    """What to type to go on with it, or to press these keys, where the host does not run."""


class Point(NamedTuple):
    """The prompt before which a conversation is to end, and its session, as a store has them."""

    session: str
    ref: str
    """The host's own id of the prompt."""
    prompt: str
    """Its beginning, on one line."""
    time_ns: int


class _Way(NamedTuple):
    """How the conversation of a host goes back."""

    tried: str
    """The version of the host with which that was tried."""
    what: str
    """What does it, in a few words."""
    resume: tuple[str, ...]
    """The command line that goes on with a session, after the name of the program."""
    kind: WayKind = WayKind.KEYS
    call: Callable[[str, Point, str, Mapping[str, str]], str] | None = None
    """Has the host take it back, and returns the session in which it goes on. Raises HostFailed."""
    session_form: re.Pattern[str] = _UUID
    ref_form: re.Pattern[str] | None = None
    """Of the host's ids of prompts; None where it tells none."""
    keys: str | None = None
    """What to press in the host; ``{prompt}`` is what to choose."""


def way_of(host: str) -> tuple[str, str] | None:
    """Returns what takes a conversation of a host back, and the version it was tried with."""
    way = _WAYS.get(host)
    return (way.what, way.tried) if way is not None else None


def conversation(
    session: AgentSession,
    step: AgentStep | None,
    root: str,
    environ: Mapping[str, str],
    *,
    is_wanted: bool,
    dry_run: bool = False,
) -> Conversation | None:
    """Has a conversation go back to before the prompt of a step, if that is wanted.

    Returns what became of it; None where that was not wanted and no way is known. A call that is
    interrupted has failed: the files have gone back by then, and that is to be said.
    """
    way = _WAYS.get(session.host)
    if way is None or step is None or step.phase is not EventPhase.TURN:
        where = "before a prompt alone" if way is not None else "in no way that is known here"
        failed = Conversation(
            ConversationOutcome.FAILED, WayKind.KEYS, session.id, f"it goes back {where}"
        )
        return failed if is_wanted else None
    record = step.snapshot.record
    point = Point(session.id, step.ref, record.label or "", record.created_at_ns)
    problem = _problem(session, step, way)
    left = Conversation(
        ConversationOutcome.LEFT,
        way.kind if problem is None else WayKind.KEYS,
        session.id,
        keys=way.keys.format(prompt=quoted(point.prompt)) if way.keys is not None else None,
        command=_resuming(session.host, way, session.id),
    )
    if not is_wanted or (dry_run and problem is None):
        return left
    try:
        if problem is not None:
            raise HostFailed(problem)
        went_on = _asked(session.host, way, point, root, environ)
    except HostFailed as error:
        is_certain = not isinstance(error, _Unanswered)
        outcome = ConversationOutcome.FAILED if is_certain else ConversationOutcome.UNKNOWN
        return left._replace(outcome=outcome, reason=printable(str(error))[:_REASON_LENGTH_MAX])
    except KeyboardInterrupt:
        return left._replace(outcome=ConversationOutcome.UNKNOWN, reason="it was interrupted")
    return left._replace(
        outcome=ConversationOutcome.FORKED
        if way.kind is WayKind.FORK
        else ConversationOutcome.BACK,
        session=went_on,
        keys=None,
        command=_resuming(session.host, way, went_on),
    )


class _Unanswered(HostFailed):
    """A host was asked for what takes the conversation back, and said neither yes nor no."""


@contextmanager
def _last_question() -> Iterator[None]:
    """Raises _Unanswered where a host fails in the body in another way than by a refusal."""
    try:
        yield
    except HostRefused:
        raise
    except HostFailed as error:
        raise _Unanswered(str(error)) from error


def _problem(session: AgentSession, step: AgentStep, way: _Way) -> str | None:
    """Returns why a host is not asked at all, or None."""
    if way.call is None:
        return f"{session.host} has no call for that"
    if way.session_form.fullmatch(session.id) is None:
        return f"{quoted(session.id)} is not an id of its sessions"
    if way.ref_form is None:
        return None
    if not step.ref:
        return "the prompt was captured without its id"
    if way.ref_form.fullmatch(step.ref) is None:
        return f"{quoted(step.ref)} is not an id of its prompts"
    if any(
        other.phase is EventPhase.TURN and other.ref == step.ref and other.number < step.number
        for other in session.steps
    ):
        return "the host has one turn for this prompt and the one before it"
    return None


def _asked(host: str, way: _Way, point: Point, root: str, environ: Mapping[str, str]) -> str:
    """Asks a host to take a conversation back; returns the session in which it goes on."""
    assert way.call is not None
    program = host_program([host], environ)
    if program is None:
        raise HostFailed(f"{host} is not on the PATH")
    quiet = {**environ, "SNAP_DISABLE": "1"}  # an agent does nothing of this
    try:
        return way.call(program, point, root, quiet)
    except OSError as error:
        raise HostFailed(f"{host} cannot be asked: {error.strerror or error}") from error


def _resuming(host: str, way: _Way, session: str) -> tuple[str, ...] | None:
    """Returns the command line that goes on with a session, if the id is one."""
    if way.session_form.fullmatch(session) is None:
        return None
    return (host, *(word.format(session=session) for word in way.resume))


def _require_here(directory: object, root: str) -> None:
    """Raises HostFailed unless a session works in the root: its id came from a store."""
    if not isinstance(directory, str) or "\0" in directory:
        raise HostFailed("it does not say where the session works")
    try:
        here, there = (os.fsencode(os.path.realpath(path)) for path in (root, directory))
    except UnicodeEncodeError as error:
        raise HostFailed("it does not say where the session works") from error
    if not treepath.is_within(there, here.rstrip(b"/")):
        raise HostFailed(f"the session works in {quoted(directory)}")


def _revert_thread(program: str, point: Point, root: str, environ: Mapping[str, str]) -> str:
    """Has Codex take turns out of a thread, which it refuses for one that is open elsewhere."""
    with HostProcess([program, "app-server"], environ, timeout_s=TIMEOUT_S) as process:
        talk = JsonTalk(process, is_framed=False)
        talk.ask("initialize", clientInfo={"name": "treesnap", "version": "1"})
        talk.tell("initialized")
        resumed = talk.ask("thread/resume", threadId=point.session, excludeTurns=True)
        _require_here(resumed.get("cwd"), root)
        with _last_question():
            talk.ask("thread/revert", threadId=point.session, beforeTurnId=point.ref)
    return point.session


def _rewind_history(program: str, point: Point, root: str, environ: Mapping[str, str]) -> str:
    """Has Copilot rewind a session, which says of itself whether it is open elsewhere."""
    words = [program, "--headless", "--stdio"]
    with HostProcess(words, environ, timeout_s=TIMEOUT_S) as process:
        talk = JsonTalk(process, is_framed=True)
        session = {"sessionId": point.session}
        talk.ask("connect")
        talk.ask("session.resume", **session)
        points = talk.ask("session.history.listRewindPoints", **session).get("points")
        resumed = _resumed(talk)
        if resumed.get("alreadyInUse") is not False:
            raise HostFailed("the session is open")
        context = resumed.get("context")
        _require_here(context.get("cwd") if isinstance(context, dict) else None, root)
        event_id = _event_of(points, point)
        with _last_question():
            answer = talk.ask(
                "session.history.rewind", **session, eventId=event_id, mode="conversation"
            )
        if answer.get("outcome") != "success":
            raise HostFailed(f"it says {answer.get('outcome')}")
    return point.session


def _resumed(talk: JsonTalk) -> Mapping[str, Any]:
    """Returns what Copilot tells of the session that it has resumed."""
    for message in talk.events:
        parameters = message.get("params")
        event = parameters.get("event") if isinstance(parameters, dict) else None
        if isinstance(event, dict) and event.get("type") == "session.resume":
            data = event.get("data")
            return data if isinstance(data, dict) else {}
    return {}


def _event_of(points: object, point: Point) -> str:
    """Returns the id of a prompt among those that Copilot lists: its hook tells none.

    It has the text and the time that the snapshot before it has.
    """
    events: list[tuple[int, str]] = []
    for item in points if isinstance(points, list) else ():
        text, time, event_id = (
            item.get(name) if isinstance(item, dict) else None
            for name in ("userMessage", "timestamp", "eventId")
        )
        if not (isinstance(text, str) and isinstance(time, str) and isinstance(event_id, str)):
            continue
        try:
            told_ns = int(datetime.fromisoformat(time).timestamp() * 1_000_000_000)
        except (ValueError, OverflowError):
            continue
        apart_ns = abs(told_ns - point.time_ns)
        if one_line(text) == point.prompt and apart_ns <= _SAME_PROMPT_NS:
            events.append((apart_ns, event_id))
    if not events:
        raise HostFailed("it does not list the prompt")
    return min(events)[1]


def _fork_session(program: str, point: Point, root: str, environ: Mapping[str, str]) -> str:
    """Has a server of opencode fork a session; the server ends with that.

    It asks for a password that only this process knows, since anyone on the machine could reach
    it. A fork at a message that is not there would be a whole copy, so that is asked first.
    """
    password = os.urandom(24).hex()
    own = {"OPENCODE_SERVER_USERNAME": "treesnap", "OPENCODE_SERVER_PASSWORD": password}
    words = [program, "serve", "--hostname", "127.0.0.1", "--port", "0"]
    with HostProcess(
        words, {**environ, **own}, timeout_s=TIMEOUT_S, ends_by_signal=True
    ) as process:
        while (listens := _OPENCODE_LISTENS.search(process.said.line())) is None:
            pass
        login = base64.b64encode(f"treesnap:{password}".encode()).decode()
        server = _Server(int(listens.group(1)), login, process.end_s)
        place = f"/session/{point.session}"
        directory = server.ask("GET", place).get("directory")
        _require_here(directory, root)
        query = f"?directory={quote(os.fsencode(str(directory)), safe='')}"
        message = server.ask("GET", f"{place}/message/{point.ref}{query}").get("info")
        if not isinstance(message, dict) or message.get("role") != "user":
            raise HostFailed("its answer is not understood")
        with _last_question():
            fork = server.ask("POST", f"{place}/fork{query}", {"messageID": point.ref}).get("id")
            if not isinstance(fork, str) or _OPENCODE_SESSION.fullmatch(fork) is None:
                raise HostFailed("its answer is not understood")
    return fork


class _Server(NamedTuple):
    """A server of opencode on this machine."""

    port: int
    login: str
    end_s: float

    def ask(self, method: str, path: str, body: object = None) -> Mapping[str, Any]:
        """Returns the JSON object that is the answer; raises HostFailed, and OSError."""
        import http.client
        import socket

        content = json.dumps(body).encode() if body is not None else b""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Basic {self.login}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ]
        request = "\r\n".join([*lines, "", ""]).encode("ascii") + content
        with closing(socket.create_connection(("127.0.0.1", self.port), _CONNECT_S)) as connection:
            connection.sendall(request)
            said: Any = _SaidFile(HostSaid(connection.fileno(), self.end_s))
            response = http.client.HTTPResponse(said)
            try:
                response.begin()
                answer = json.loads(response.read(SAID_SIZE_MAX))  # room is made for what it says
                if response.length:
                    raise HostFailed("its answer is not understood")
            except (http.client.HTTPException, ValueError, RecursionError) as error:
                raise HostFailed("its answer is not understood") from error
        if response.status != http.client.OK or not isinstance(answer, dict):
            raise HostRefused(_refusal(answer) or f"it answered with status {response.status}")
        return answer


class _SaidFile(io.RawIOBase):
    """What comes from a connection, in the form from which the library reads answers."""

    def __init__(self, said: HostSaid) -> None:
        super().__init__()
        self._said = said

    def makefile(self, *_: object) -> io.BufferedReader:
        """Returns it as a file."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads what comes next."""
        data = self._said.some(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _refusal(answer: object) -> str | None:
    data = answer.get("data") if isinstance(answer, dict) else None
    message = data.get("message") if isinstance(data, dict) else None
    return message if isinstance(message, str) else None


_WAYS: Mapping[str, _Way] = {
    "claude": _Way(
        *("2.1.332", "keys", ("--resume", "{session}", "--fork-session")),
        keys='press Esc twice, choose {prompt}, then "Restore conversation"',
    ),
    "codex": _Way(
        *("0.171.0", "thread/revert of its app-server", ("resume", "{session}")),
        *(WayKind.CUT, _revert_thread),
        ref_form=_UUID,
        keys="press Esc twice, go to {prompt} with the left and right keys, then press Enter",
    ),
    "gemini": _Way(
        *("0.61.0", "keys", ("--resume", "{session}")),
        keys='type /rewind, choose {prompt}, then "Rewind conversation"',
    ),
    "copilot": _Way(
        *("1.0.102", "session.history.rewind of its server", ("--resume={session}",)),
        *(WayKind.CUT, _rewind_history),
        keys='type /rewind, choose {prompt}, then "Conversation only"',
    ),
    "opencode": _Way(
        *("1.18.33", "a fork by its server", ("--session", "{session}")),
        *(WayKind.FORK, _fork_session),
        session_form=_OPENCODE_SESSION,
        ref_form=_OPENCODE_MESSAGE,
    ),
}
"""Of hosts that are not here no way is known: of Cline a call of its library alone."""
