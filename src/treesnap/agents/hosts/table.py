"""All hosts: where each differs from Claude Code, mostly in names; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from treesnap.agents.event import Event
from treesnap.agents.hosts.base import CONTEXT, Host, Payload, as_name, by_name, words
from treesnap.core.model.errors import InvalidArgument, quoted
from treesnap.core.ops.history.steps import EventPhase

_EXPANSION = "UserPromptExpansion"
"""A slash command of Claude Code is about to become a prompt."""
_AGENT_END = "SubagentStop"
"""An agent has ended that another one had started; that one goes on."""
_PREFIX = "/treesnap:"
"""What the slash commands of treesnap's plugin begin with. Without a terminal they are told twice:
as a prompt first, and before they expand only if that was not answered."""
_SETTLED = re.compile(r"<tool-use-id>([^<]+)</tool-use-id>")
_BLOCKED_PROMPT: Mapping[str, Any] = {"decision": "block", "reason": "{text}"}
"""The reply that shows a text in place of the model's answer, where it is that of Claude Code."""
_PEOPLE = ("user", "sdk")
"""Where prompts come from that a person or a program wrote."""


class Claude(Host):
    """Claude Code.

    ``SessionStart`` and ``Stop`` cannot be blocked: exit code 2 would make the agent go on after
    its turn.
    """

    name: str = "claude"
    phases: Mapping[str, EventPhase] = {
        **Host.phases,
        _EXPANSION: EventPhase.TURN,
        _AGENT_END: EventPhase.WAKE,
    }
    worktree_events: Mapping[str, bool] = {"WorktreeCreate": True, "WorktreeRemove": False}
    root_variables: tuple[str, ...] = ("CLAUDE_PROJECT_DIR",)
    warning_field: str | None = "systemMessage"
    answer_form: Mapping[str, Any] | None = _BLOCKED_PROMPT
    read_only_tools: frozenset[str] = words(
        "AskUserQuestion BashOutput EnterPlanMode ExitPlanMode Glob Grep LS NotebookRead Read "
        "TodoRead TodoWrite WebFetch WebSearch"
    ) | words("Agent Task")  # the agent that it starts tells calls of its own
    agent_fields: tuple[str, ...] = ("agent_id",)
    wake_beginning: str | None = "<task-notification>"
    background_fields: tuple[str, ...] = (
        "tool_response.backgroundTaskId",
    )  # also where the host decided that
    path_fields: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(("Edit", "MultiEdit", "Write"), ("file_path",)),
        "NotebookEdit": ("notebook_path",),
    }

    def parse(self, payload: Payload) -> Event | None:
        """Returns the event, which of slash commands only those of treesnap are.

        They have no key: the payload may have the id of the prompt before. A prompt that says that
        a task has ended is a wake, also where it has the id of the running prompt; one that the
        user wrote meanwhile has that id, too.
        """
        event = super().parse(payload)
        if event is not None and payload.text(*self.event_fields) == _AGENT_END:
            return event._replace(ends_agent=True) if event.agent else None
        if event is None or event.phase is EventPhase.END:
            is_idle = payload.value("background_tasks") == []
            return event._replace(settled=("",)) if event is not None and is_idle else event
        if payload.text(*self.event_fields) == _EXPANSION:
            is_ours = super().prompt(payload).startswith(_PREFIX)
            return event._replace(key="", ref="") if is_ours else None  # its own prompt follows
        source = payload.text("source")
        is_told = source is not None and source not in _PEOPLE
        if event.phase is EventPhase.WAKE or (event.phase is EventPhase.TURN and is_told):
            settled = tuple(map(as_name, _SETTLED.findall(super().prompt(payload))))
            return event._replace(phase=EventPhase.WAKE, prompt=None, ref="", settled=settled)
        return event

    def prompt(self, payload: Payload) -> str:
        """Returns what the user wrote, or the command that a slash command stands for."""
        text = super().prompt(payload)
        return f"snap {text.removeprefix(_PREFIX)}" if text.startswith(_PREFIX) else text


class Codex(Host):
    """Codex.

    It refuses fields that it does not know, sets no variable to the project, and runs a hook only
    after the user has trusted its exact line.
    """

    name: str = "codex"
    moves_with_calls: bool = True
    warning_field: str | None = "systemMessage"
    answer_form: Mapping[str, Any] | None = _BLOCKED_PROMPT
    patch_fields: Mapping[str, tuple[str, ...]] = {"apply_patch": ("command", "input", "patch")}
    _PATCH_IN_SHELL: ClassVar = re.compile(
        r"\s*apply_patch\s*<<\s*(['\"])(\w+)\1\n((?:(?!\2\n).*\n)*)\2\s*"
    )
    read_only_tools: frozenset[str] = words(
        "grep_files list_dir read_file update_plan view_image web_search"
    )

    def paths(self, payload: Payload, tool: str) -> tuple[bytes, ...] | None:
        """Returns the files of a patch also where a shell command is one, and nothing else.

        Codex carries that out by itself, and tells no end of the call.
        """
        command = self.input(payload, "command")
        if tool == "Bash" and isinstance(command, str) and self._PATCH_IN_SHELL.fullmatch(command):
            return super().paths(payload, "apply_patch")
        return super().paths(payload, tool)


class Gemini(Host):
    """Gemini CLI.

    It has ids for neither prompts nor calls, and reads JSON from standard output whatever happens.
    """

    name: str = "gemini"
    phases: Mapping[str, EventPhase] = by_name(
        session="SessionStart",
        turn="BeforeAgent",
        pre="BeforeTool",
        post="AfterTool",
        end="AfterAgent",
    )
    root_variables: tuple[str, ...] = ("GEMINI_PROJECT_DIR", "CLAUDE_PROJECT_DIR")
    warning_field: str | None = "systemMessage"
    answer_form: Mapping[str, Any] | None = {"decision": "deny", "reason": "{text}"}
    nothing: str = "{}\n"
    read_only_tools: frozenset[str] = words(
        "get_internal_docs glob google_web_search grep_search list_directory read_file "
        "read_many_files search_file_content web_fetch write_todos"
    )
    path_fields: Mapping[str, tuple[str, ...]] = dict.fromkeys(
        ("replace", "write_file"), ("file_path",)
    )


class Copilot(Host):
    """Copilot CLI.

    An event with a name in the style of Claude Code has a payload in that style, without ids; one
    in its own style (``preToolUse``) does not say which event it is, so the installed line has to.
    What exit codes mean is not documented: decisions are JSON, in both styles. An agent that
    another one started tells a session of its own, and that of the other as its parent.
    """

    name: str = "copilot"
    phases: Mapping[str, EventPhase] = {
        **Host.phases,
        **by_name(
            session="sessionStart",
            turn="userPromptSubmitted",
            pre="preToolUse",
            post="postToolUse",
            end="agentStop",
        ),
    }
    session_fields: tuple[str, ...] = ("parent_agent_id", "session_id", "sessionId")
    wake_beginning: str | None = "<system_notification>"
    agent_fields: tuple[str, ...] = ("agent_id",)
    parent_fields: tuple[str, ...] = ("parent_agent_id",)
    tool_fields: tuple[str, ...] = ("tool_name", "toolName")
    input_fields: tuple[str, ...] = ("tool_input", "toolArgs")
    root_variables: tuple[str, ...] = ("COPILOT_PROJECT_DIR", "CLAUDE_PROJECT_DIR")
    context_form: Mapping[str, Any] | str = {"additionalContext": "{text}", **CONTEXT}
    answer_form: Mapping[str, Any] | None = _BLOCKED_PROMPT
    _denial: ClassVar = {"permissionDecision": "deny", "permissionDecisionReason": "{text}"}
    block_forms: Mapping[EventPhase, Mapping[str, Any]] = {
        EventPhase.TURN: _BLOCKED_PROMPT,
        EventPhase.PRE: {
            **_denial,
            "hookSpecificOutput": {"hookEventName": "PreToolUse", **_denial},
        },
    }
    read_only_tools: frozenset[str] = words(
        "Glob Grep Read WebFetch ask_user fetch_copilot_cli_documentation glob grep list_bash "
        "read_bash report_intent rg update_todo view web_fetch"
    ) | words("Agent task")  # the agent that it starts tells calls of its own
    path_fields: Mapping[str, tuple[str, ...]] = {
        **dict.fromkeys(("create", "edit"), ("path",)),
        **dict.fromkeys(("Edit", "Write"), ("file_path", "path")),
    }
    patch_fields: Mapping[str, tuple[str, ...]] = {"apply_patch": ("input", "patch")}
    background_inputs: Mapping[str, object] = {"mode": "async"}


class Opencode(Host):
    """opencode.

    It calls functions of a plugin and no command. The plugin that treesnap installs runs ``snap
    hook opencode`` with this payload on standard input, and without the fields that an event
    lacks::

        {"event": "session.created" | "chat.message" | "tool.execute.before" |
                  "tool.execute.after" | "session.idle",
         "directory": "...", "sessionID": "...", "messageID": "...", "prompt": "...",
         "callID": "...", "tool": "bash", "args": {"command": "..."}}

    It throws an error with the text of standard error for exit code 2. Of the JSON object on
    standard output, if there is one, it adds ``context`` to the prompt and shows ``warning``.
    ``worktree`` is ``/`` outside git, so the root is ``directory``.
    """

    name: str = "opencode"
    phases: Mapping[str, EventPhase] = by_name(
        session="session.created",
        turn="chat.message",
        pre="tool.execute.before",
        post="tool.execute.after",
        end="session.idle",
    )
    event_fields: tuple[str, ...] = ("event",)
    session_fields: tuple[str, ...] = ("sessionID",)
    key_fields: Mapping[EventPhase, tuple[str, ...]] = {
        EventPhase.TURN: ("messageID",),
        EventPhase.PRE: ("callID",),
    }
    root_fields: tuple[str, ...] = ("directory",)
    tool_fields: tuple[str, ...] = ("tool",)
    input_fields: tuple[str, ...] = ("args",)
    call_fields: tuple[str, ...] = ("callID",)
    path_fields: Mapping[str, tuple[str, ...]] = dict.fromkeys(("edit", "write"), ("filePath",))
    patch_fields: Mapping[str, tuple[str, ...]] = dict.fromkeys(
        ("apply_patch", "patch"), ("patchText",)
    )
    warning_field: str | None = "warning"
    context_form: Mapping[str, Any] | str = {"context": "{text}"}
    read_only_tools: frozenset[str] = words(
        "codesearch glob grep list lsp question read todoread todowrite webfetch websearch"
    ) | words("task")  # the agent that it starts tells calls of its own


class Cline(Host):
    """Cline.

    A hook is an executable file that is named like its event and passes that name on: the payload
    of the command line calls a tool call ``tool_call``, that of the editor ``PreToolUse``. The
    first prompt of a task is in ``TaskStart``, though not in a one-shot run of the command line,
    which has no ``UserPromptSubmit`` either. It reads JSON from standard output whatever happens,
    and gives exit codes no meaning. The model is asked whatever the hook of a prompt replies.
    """

    name: str = "cline"
    phases: Mapping[str, EventPhase] = by_name(
        session="TaskResume",
        turn="TaskStart UserPromptSubmit",
        pre="PreToolUse tool_call",
        post="PostToolUse tool_result",
        end="TaskComplete",
    )
    event_fields: tuple[str, ...] = ("hookName",)
    session_fields: tuple[str, ...] = ("sessionContext.rootSessionId", "taskId")
    parent_fields: tuple[str, ...] = ("parent_agent_id",)
    key_fields: Mapping[EventPhase, tuple[str, ...]] = {EventPhase.PRE: ("tool_call.id",)}
    root_fields: tuple[str, ...] = ("workspaceRoots.0", "workspaceRoots.0.path", "cwd")
    tool_fields: tuple[str, ...] = ("tool_call.name", "tool_result.name", "preToolUse.toolName")
    input_fields: tuple[str, ...] = (
        "tool_call.input",
        "tool_result.input",
        "preToolUse.parameters",
    )
    call_fields: tuple[str, ...] = ("tool_call.id", "tool_result.id")
    path_fields: Mapping[str, tuple[str, ...]] = {"editor": ("path",)}
    prompt_fields: tuple[str, ...] = (
        "userPromptSubmit.prompt",
        "taskStart.taskMetadata.initialTask",
        "taskStart.task",
        "prompt",
        "task",
    )
    begins_with_prompt: bool = True
    waits_for_turn: bool = False
    nothing: str = '{"cancel": false}\n'
    context_form: Mapping[str, Any] | str = {"cancel": False, "contextModification": "{text}"}
    blocked_phases: frozenset[EventPhase] = frozenset({EventPhase.PRE})
    block_forms: Mapping[EventPhase, Mapping[str, Any]] = {
        EventPhase.PRE: {"cancel": True, "errorMessage": "{text}"}
    }
    read_only_tools: frozenset[str] = words(
        "ask_followup_question ask_question fetch_web_content list_code_definition_names "
        "list_files load_mcp_documentation plan_mode_respond read_file read_files "
        "search_codebase search_files web_fetch web_search"
    ) | words("spawn_agent")  # the agent that it starts tells calls of its own


class Cursor(Host):
    """Cursor.

    Nothing is said when a tool may run: ``{"permission": "allow"}`` would keep Cursor from asking
    the user. ``afterFileEdit`` is too late for the state before an edit. A reply to a prompt has
    no place for a context.
    """

    name: str = "cursor"
    phases: Mapping[str, EventPhase] = by_name(
        session="sessionStart",
        turn="beforeSubmitPrompt",
        pre="preToolUse beforeShellExecution beforeMCPExecution",
        post="postToolUse afterFileEdit",
        end="stop",
    )
    session_fields: tuple[str, ...] = ("conversation_id", "session_id")
    key_fields: Mapping[EventPhase, tuple[str, ...]] = {
        EventPhase.TURN: ("generation_id",),
        EventPhase.PRE: ("tool_use_id",),
    }
    root_variables: tuple[str, ...] = ("CURSOR_PROJECT_DIR",)
    root_fields: tuple[str, ...] = ("workspace_roots.0", "cwd")
    tool_fields: tuple[str, ...] = ("tool_name", "hook_event_name")  # of events of a single tool
    input_fields: tuple[str, ...] = ("tool_input", "")
    repeats_input: bool = False  # an event of a single tool tells it in its own fields
    context_form: Mapping[str, Any] | str = {}
    _stop: ClassVar = {"continue": False, "user_message": "{text}"}
    answer_form: Mapping[str, Any] | None = _stop
    block_forms: Mapping[EventPhase, Mapping[str, Any]] = {EventPhase.TURN: _stop}
    read_only_tools: frozenset[str] = words("Glob Grep List Read SemanticSearch WebSearch")


class Windsurf(Host):
    """Windsurf.

    An action has its own name for each tool. The payload has no root, and the directory of a
    command is not it: hooks are started in the workspace. A reply has no place for a context.
    """

    name: str = "windsurf"
    phases: Mapping[str, EventPhase] = by_name(
        turn="pre_user_prompt",
        pre="pre_write_code pre_run_command pre_mcp_tool_use",
        post="post_write_code post_run_command post_mcp_tool_use",
        end="post_cascade_response",
    )
    event_fields: tuple[str, ...] = ("agent_action_name",)
    session_fields: tuple[str, ...] = ("trajectory_id",)
    key_fields: Mapping[EventPhase, tuple[str, ...]] = {EventPhase.TURN: ("execution_id",)}
    begins_with_prompt: bool = True
    root_fields: tuple[str, ...] = ()
    tool_fields: tuple[str, ...] = ("tool_info.mcp_tool_name", "agent_action_name")
    input_fields: tuple[str, ...] = ("tool_info",)
    repeats_input: bool = False
    prompt_fields: tuple[str, ...] = ("tool_info.user_prompt",)
    context_form: Mapping[str, Any] | str = {}


class Kiro(Host):
    """Kiro CLI.

    Its payloads name no session and have no ids, so all sessions in a root are one, and each call
    is a step. What a prompt hook prints is added to the prompt, and its exit code stops nothing.
    """

    name: str = "kiro"
    phases: Mapping[str, EventPhase] = by_name(
        session="agentSpawn",
        turn="userPromptSubmit",
        pre="preToolUse",
        post="postToolUse",
        end="stop",
    )
    session_default: str | None = "kiro"
    begins_with_prompt: bool = True  # in its editor
    blocked_phases: frozenset[EventPhase] = frozenset({EventPhase.PRE})
    context_form: Mapping[str, Any] | str = "{text}"
    read_only_tools: frozenset[str] = words(
        "code fs_read glob grep introspect read thinking web_fetch web_search"
    )


class VisualStudioCode(Host):
    """The agent of VS Code.

    A reply to a prompt can show the user a message, but tell the model nothing.
    """

    name: str = "vscode"
    session_fields: tuple[str, ...] = ("session_id", "sessionId")
    warning_field: str | None = "systemMessage"
    context_form: Mapping[str, Any] | str = {"systemMessage": "{text}"}
    read_only_tools: frozenset[str] = words(
        "fetch_webpage file_search get_changed_files get_errors get_terminal_output grep_search "
        "list_code_usages list_dir manage_todo_list read_file semantic_search"
    )


HOSTS: Mapping[str, Host] = {
    host.name: host()
    for host in (
        *(Claude, Codex, Gemini, Copilot, Opencode),
        *(Cline, Cursor, Windsurf, Kiro, VisualStudioCode),
    )
}


def host_named(name: str) -> Host:
    """Returns a host; raises InvalidArgument for an unknown name."""
    if name not in HOSTS:
        raise InvalidArgument(f"There is no host {quoted(name)}; known are {', '.join(HOSTS)}")
    return HOSTS[name]
