"""What all hosts have in common: a payload becomes an event, a decision becomes a reply; pure.

Most hosts have followed Claude Code: a JSON object on standard input, exit code 2 to block. So
:class:`Host` is that contract as data and a few methods, and a host says in ``table`` where it
differs. What a payload lacks, or has in another type than expected, is absent: a new version of
a host must not end the captures. Only without the event, the root or the session nothing can be
done.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from treesnap.agents.event import Event, Reply, WorktreeAsked
from treesnap.core.model.arguments import problem_of_name
from treesnap.core.model.errors import InvalidArgument, quoted
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.history.steps import EventPhase

_OWN_TOOL = re.compile(r"(mcp_+)?(plugin_treesnap_)?treesnap(_+|[.-])[a-z_]+")
"""The tools of ``snap mcp``, as hosts name those of a server that is called treesnap."""
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.MULTILINE)
"""The lines of a patch that name files."""
BLOCKED = 2
"""The exit code that keeps most hosts from going on."""
CONTEXT: Mapping[str, Any] = {
    "hookSpecificOutput": {"hookEventName": "{event}", "additionalContext": "{text}"}
}
"""How Claude Code is told a text beside a prompt."""
_SUMMARY_LENGTH_MAX = 80
_SUMMARISING = (
    *("command", "cmd", "commands", "command_line"),
    *("file_path", "filePath", "path", "url"),
)
"""Inputs of tools that say in a line what a call does."""


class Payload(NamedTuple):
    """What a host wrote to a hook, and how it called it."""

    fields: Mapping[str, Any]
    """The JSON object from standard input."""
    event_name: str | None = None
    """The event, where the installed line says it."""
    root: str | None = None
    """The root, where the installed line says it."""
    environ: Mapping[str, str] = {}
    directory: str = ""
    """Where the hook was started."""

    def value(self, name: str) -> object:
        """Returns a field, or None; ``a.b`` is the field b of the object a, ``a.0`` an item."""
        value: Any = self.fields
        for part in name.split("."):
            if isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value

    def text(self, *names: str) -> str | None:
        """Returns the first of some fields that has text, as valid UTF-8, or None.

        A number is text as well: some hosts have times and ids as numbers.
        """
        for name in names:
            value = self.value(name)
            if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
                return _valid(str(value))
        return None

    def full_path(self, name: str) -> str | None:
        """Returns a field that is the full path of something, or None."""
        path = self.text(name)
        return path if path is not None and path.startswith("/") and "\0" not in path else None


def _valid(text: str) -> str:
    return text.encode(errors="replace").decode()


class Host:
    """One host: its words as data, and its replies."""

    name: str
    phases: Mapping[str, EventPhase] = {
        "SessionStart": EventPhase.SESSION,
        "UserPromptSubmit": EventPhase.TURN,
        "PreToolUse": EventPhase.PRE,
        "PostToolUse": EventPhase.POST,
        "PostToolUseFailure": EventPhase.POST,
        "Stop": EventPhase.END,
    }
    """The events that are told apart, by the host's names; others need nothing."""
    worktree_events: Mapping[str, bool] = {}
    """The events that ask for a working tree: whether it is to be made, or removed."""
    event_fields: tuple[str, ...] = ("hook_event_name",)
    session_fields: tuple[str, ...] = ("session_id",)
    key_fields: Mapping[EventPhase, tuple[str, ...]] = {
        EventPhase.TURN: ("prompt_id", "turn_id"),
        EventPhase.PRE: ("tool_use_id",),
    }
    """What is the same when one prompt or call is told again, and at no other time."""
    root_variables: tuple[str, ...] = ()
    """Variables that the host sets to the root. Others are those of a host around it."""
    root_fields: tuple[str, ...] = ("cwd",)
    moves_with_calls: bool = False
    """Whether that is the directory of the call before and after a tool."""
    tool_fields: tuple[str, ...] = ("tool_name",)
    input_fields: tuple[str, ...] = ("tool_input",)
    """The object with what a tool is called with; empty for the payload itself."""
    prompt_fields: tuple[str, ...] = ("prompt",)
    read_only_tools: frozenset[str] = frozenset()
    call_fields: tuple[str, ...] = ("tool_use_id",)
    """What names a call, the same before and after it."""
    repeats_input: bool = True
    """Whether what a tool is called with is told after it as before, and so names the call."""
    agent_fields: tuple[str, ...] = ()
    """What names an agent that another one of the session has started."""
    parent_fields: tuple[str, ...] = ()
    """What is there only in payloads of such an agent, of which tools alone concern the session:
    an agent wrote what it is asked for, and the turn goes on at its end."""
    path_fields: Mapping[str, tuple[str, ...]] = {}
    """By tool that changes no file but those that it names: the inputs that name them."""
    patch_fields: Mapping[str, tuple[str, ...]] = {}
    """Likewise: the inputs that are patches, in the form of Codex."""
    background_inputs: Mapping[str, object] = {
        "run_in_background": True,
        "is_background": True,
    }
    """The inputs, with what they hold where what a tool starts goes on after it."""
    background_fields: tuple[str, ...] = ()
    """What the payload after a tool has only in that case."""
    wake_beginning: str | None = None
    """What a prompt of the host itself begins with, which goes on after work in the background."""
    begins_with_prompt: bool = False
    """Whether the first event of a session is its first prompt."""
    waits_for_turn: bool = True
    """Whether the model begins only after the hook of its prompt has ended."""
    nothing: str = ""
    """What standard output holds when there is nothing to say."""
    warning_field: str | None = None
    """The field of a reply that is shown to the user."""
    session_default: str | None = None
    """The session of payloads that name none."""
    context_form: Mapping[str, Any] | str = CONTEXT
    """The reply to a prompt that tells the model a text beside it; JSON, or text as it stands."""
    answer_form: Mapping[str, Any] | None = None
    """The reply to a prompt that shows a text in place of the model's answer."""
    blocked_phases: frozenset[EventPhase] = frozenset({EventPhase.TURN, EventPhase.PRE})
    """What a hook can keep the host from. Elsewhere a reply that blocks would be ignored, or taken
    for a failure; the beginning of a session and the end of a turn are never blocked."""
    block_forms: Mapping[EventPhase, Mapping[str, Any]] = {}
    """The replies that keep something from being carried out, where that is not the exit code."""

    def parse(self, payload: Payload) -> Event | None:
        """Returns the event of a payload, or None for one that needs nothing.

        Raises InvalidArgument for what is not a payload of this host.
        """
        name = payload.event_name or payload.text(*self.event_fields)
        if name is None:
            raise InvalidArgument(f"The input is not a payload of {self.name}: it names no event")
        phase = self.phases.get(name)
        if phase is None:
            return None
        is_call = phase in (EventPhase.PRE, EventPhase.POST)
        if not is_call and payload.text(*self.parent_fields) is not None:
            return None
        tool = payload.text(*self.tool_fields) if is_call else None
        event = Event(
            host=self.name,
            phase=phase,
            root=self.root(payload),
            session=self.session(payload),
            key=self.key(payload, phase),
            tool=tool,
            prompt=self.prompt(payload) if phase is EventPhase.TURN else None,
            summary=self.summary(payload) if tool is not None else None,
            is_read_only=self.is_read_only(tool),
            call=self.call(payload, tool) if is_call else "",
            paths=self.paths(payload, tool) if tool is not None else None,
            is_background=is_call and self.is_background(payload),
            agent=payload.text(*self.agent_fields) or "",
            ref=self.ref(payload) if phase is EventPhase.TURN else "",
            directory=payload.full_path("cwd") if payload.root is None else None,
        )
        beginning = self.wake_beginning
        if beginning is not None and (event.prompt or "").startswith(beginning):
            return event._replace(phase=EventPhase.WAKE, prompt=None, ref="")
        return event

    def worktree(self, payload: Payload) -> WorktreeAsked | None:
        """Returns which working tree a payload asks for, or None for any other payload."""
        makes = self.worktree_events.get(payload.text(*self.event_fields) or "")
        if makes is None:
            return None
        here = payload.full_path("cwd") or self.root(payload)  # where the agent is by now
        return WorktreeAsked(here, makes, payload.value("name"), payload.full_path("worktree_path"))

    def call(self, payload: Payload, tool: str | None) -> str:
        """Returns what names a call, the same before and after it, or an empty text.

        Two equal calls at one time have one name, and count as two.
        """
        name = payload.text(*self.call_fields)
        if name is not None or tool is None or not self.repeats_input:
            return as_name(name or "") if name else ""
        inputs = [payload.value(field) for field in self.input_fields]
        return _hash(json.dumps([tool, inputs], sort_keys=True))

    def input(self, payload: Payload, name: str) -> object:
        """Returns what a tool is called with by the name of an input, or None."""
        values = (payload.value(f"{field}.{name}".lstrip(".")) for field in self.input_fields)
        return next((value for value in values if value is not None), None)

    def paths(self, payload: Payload, tool: str) -> tuple[bytes, ...] | None:
        """Returns full paths of the files that alone a tool changes, or None for any."""
        names = [self.input(payload, name) for name in self.path_fields.get(tool, ())]
        for name in self.patch_fields.get(tool, ()):
            text = self.input(payload, name)
            names += _PATCHED.findall(text) if isinstance(text, str) else []
        texts = [name for name in names if isinstance(name, str) and name and "\0" not in name]
        is_told = payload.text("cwd") is not None
        directory = payload.full_path("cwd") if is_told else self.root(payload)
        if not texts or directory is None:
            return None
        return tuple(
            os.fsencode(os.path.normpath(os.path.join(directory, _valid(text)))) for text in texts
        )

    def is_background(self, payload: Payload) -> bool:
        """Returns whether what a tool started goes on after it."""
        return any(
            self.input(payload, name) == value for name, value in self.background_inputs.items()
        ) or any(payload.value(name) is not None for name in self.background_fields)

    def is_read_only(self, tool: str | None) -> bool:
        """Returns whether a tool is known by name to change nothing, or is one of ``snap mcp``.

        Those capture before they change something. A capture before each would make the newest
        snapshot that of the call, so that a model would never see that anything changed.
        """
        return tool in self.read_only_tools or _OWN_TOOL.fullmatch(tool or "") is not None

    def root(self, payload: Payload) -> str:
        """Returns the directory in which the agent works; raises InvalidArgument for no path."""
        directory = (
            payload.root
            or next(filter(None, map(payload.environ.get, self.root_variables)), None)
            or payload.text(*self.root_fields)
            or payload.directory
        )
        if not directory.startswith("/") or "\0" in directory:
            raise InvalidArgument(
                f"The directory of the agent is {quoted(directory)}, not a full path"
            )
        here = payload.directory
        # Hosts have no words for a name that is not UTF-8, but they start hooks where they work.
        is_here = directory in (_valid(here), os.fsencode(here).decode(errors="replace"))
        return here if is_here else directory

    def session(self, payload: Payload) -> str:
        """Returns the id of the session; raises InvalidArgument where there is none."""
        session = payload.text(*self.session_fields) or self.session_default
        if session is None:
            raise InvalidArgument(f"The input is not a payload of {self.name}: it names no session")
        return as_name(session)

    def key(self, payload: Payload, phase: EventPhase) -> str:
        """Returns what is the same when an event is told again, or an empty text.

        A payload with a time is told again as it is, also where it has no id. So is the end of a
        turn, which may end twice if something made the agent go on.
        """
        key = payload.text(*self.key_fields.get(phase, ()))
        if key is not None and phase is EventPhase.TURN:  # which may have several prompts
            return _hash(f"{key} {self.prompt(payload)}")
        if key is not None:
            return as_name(key)
        turn = self.key_fields.get(EventPhase.TURN, ()) if phase is EventPhase.END else ()
        if payload.text("timestamp", *turn) is None:
            return ""
        return _hash(json.dumps(payload.fields, sort_keys=True))

    def ref(self, payload: Payload) -> str:
        """Returns the host's own id of a prompt; empty for none, or none that can be shown."""
        ref = payload.text(*self.key_fields.get(EventPhase.TURN, ())) or ""
        return ref if problem_of_name(ref) is None else ""

    def prompt(self, payload: Payload) -> str:
        """Returns what the user wrote."""
        return payload.text(*self.prompt_fields) or ""

    def summary(self, payload: Payload) -> str | None:
        """Returns what a call of a tool does, or None where the input does not say."""
        for name in _SUMMARISING:
            value = self.input(payload, name)
            text = "; ".join(map(str, value)) if isinstance(value, list) else value
            if isinstance(text, str) and text.strip():
                return text
        return None

    def go_on(
        self, event: Event | None, *, context: str | None = None, warning: str | None = None
    ) -> Reply:
        """Returns the reply that lets the host go on.

        In reply to a prompt it tells the model a context, if the host can do that; a warning is
        for the user. The event is None where it could not be found out.
        """
        fields: Any = {}
        if context is not None and event is not None and event.phase is EventPhase.TURN:
            fields = filled(self.context_form, text=context, event=self.event_name(event.phase))
        if warning is not None and self.warning_field is not None:
            fields = {**fields, self.warning_field: warning}
        stderr = f"{warning}\n" if warning is not None else ""
        if isinstance(fields, str):
            return Reply(f"{fields}\n", stderr)
        return Reply(_json_line(fields) if fields else self.nothing, stderr)

    def block(self, event: Event | None, reason: str) -> Reply:
        """Returns the reply that keeps a tool or a prompt from being carried out."""
        form = self.block_forms.get(event.phase if event is not None else EventPhase.PRE)
        if form is None:
            return Reply(stderr=f"{reason}\n", exit_code=BLOCKED)
        return Reply(_json_line(filled(form, text=reason)))

    def answer(self, text: str) -> Reply | None:
        """Returns the reply that shows a text in place of the model's answer to a prompt.

        None where the host has no such reply.
        """
        form = self.answer_form
        return Reply(_json_line(filled(form, text=text))) if form is not None else None

    def reply_fields(self, event: Event, reply: Reply) -> dict[str, Any]:
        """Returns a reply as JSON for callers in a process, who get no exit code."""
        reason = reply.stderr.strip()
        if reply.exit_code != BLOCKED:
            fields: dict[str, Any] = json.loads(reply.stdout or "{}")
            return fields
        if event.phase is EventPhase.TURN:
            return {"decision": "block", "reason": reason}
        denial = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        return {"hookSpecificOutput": {"hookEventName": self.event_name(event.phase), **denial}}

    def event_name(self, phase: EventPhase) -> str:
        """Returns the host's name of the events of a phase."""
        return next(name for name, own_phase in self.phases.items() if own_phase is phase)


def by_name(**names: str) -> dict[str, EventPhase]:
    """Returns the phase of each event of a host, from the names of the events of each phase."""
    return {name: EventPhase(phase) for phase, words in names.items() for name in words.split()}


def words(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


def filled(form: Any, **fields: str) -> Any:
    """Returns a form of JSON with these fields in the place of ``{name}`` in its texts."""
    if isinstance(form, Mapping):
        return {key: filled(inner, **fields) for key, inner in form.items()}
    return form.format(**fields) if isinstance(form, str) else form


def _json_line(fields: Mapping[str, Any]) -> str:
    """Returns a JSON object on one line of ASCII."""
    return json.dumps(fields) + "\n"


def as_name(text: str) -> str:
    """Returns an id of a host, or its hash where it cannot be the name of a session."""
    return text if problem_of_name(text) is None else _hash(text)


def one_line(text: str) -> str:
    """Returns the beginning of a text, on one line."""
    words = " ".join(text[: 4 * _SUMMARY_LENGTH_MAX].split())
    shown = _valid(words)
    is_whole = len(shown) <= _SUMMARY_LENGTH_MAX
    return shown if is_whole else shown[: _SUMMARY_LENGTH_MAX - 1] + "…"


def _hash(text: str) -> str:
    return checksum(text.encode(errors="surrogatepass"), 32).hex()
