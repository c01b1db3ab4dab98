"""All hosts: where each differs from Claude Code, mostly in names; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from treesnap.agents.event import Event
from treesnap.agents.hosts.base import Host, Payload, as_name, by_name, words
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
_PEOPLE = ("user", "sdk")
"""Where prompts come from that a person or a program wrote."""


class Claude(Host):
    """Claude Code.

    ``SessionStart`` and ``Stop`` cannot be blocked: exit code 2 would make the agent go on after
    its turn.
    """

    name = "claude"
    phases: ClassVar = {
        **Host.phases,
        _EXPANSION: EventPhase.TURN,
        _AGENT_END: EventPhase.WAKE,
    }
    worktree_events: ClassVar = {"WorktreeCreate": True, "WorktreeRemove": False}
    root_variables = ("CLAUDE_PROJECT_DIR",)
    warning_field = "systemMessage"
    answer_form: ClassVar = {"decision": "block", "reason": "{text}"}
    read_only_tools = words(
        "AskUserQuestion BashOutput EnterPlanMode ExitPlanMode Glob Grep LS NotebookRead Read "
        "TodoRead TodoWrite WebFetch WebSearch"
    ) | words("Agent Task")  # the agent that it starts tells calls of its own
    agent_fields = ("agent_id",)
    wake_beginning = "<task-notification>"
    background_fields = ("tool_response.backgroundTaskId",)  # also where the host decided that
    path_fields: ClassVar = {
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

    name = "codex"
    moves_with_calls = True
    warning_field = "systemMessage"
    answer_form = Claude.answer_form
    patch_fields: ClassVar = {"apply_patch": ("command", "input", "patch")}
    _PATCH_IN_SHELL: ClassVar = re.compile(
        r"\s*apply_patch\s*<<\s*(['\"])(\w+)\1\n((?:(?!\2\n).*\n)*)\2\s*"
    )
    read_only_tools = words("grep_files list_dir read_file update_plan view_image web_search")

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

    name = "gemini"
    phases = by_name(
        session="SessionStart",
        turn="BeforeAgent",
        pre="BeforeTool",
        post="AfterTool",
        end="AfterAgent",
    )
    root_variables = ("GEMINI_PROJECT_DIR", "CLAUDE_PROJECT_DIR")
    warning_field = "systemMessage"
    answer_form: ClassVar = {"decision": "deny", "reason": "{text}"}
    nothing = "{}\n"
    read_only_tools = words(
        "get_internal_docs glob google_web_search grep_search list_directory read_file "
        "read_many_files search_file_content web_fetch write_todos"
    )
    path_fields: ClassVar = dict.fromkeys(("replace", "write_file"), ("file_path",))


class Copilot(Host):
    """Copilot CLI.

    An event with a name in the style of Claude Code has a payload in that style, without ids; one
    in its own style (``preToolUse``) does not say which event it is, so the installed line has to.
    What exit codes mean is not documented: decisions are JSON, in both styles. An agent that
    another one started tells a session of its own, and that of the other as its parent.
    """

    name = "copilot"
    phases: ClassVar = {
        **Host.phases,
        **by_name(
            session="sessionStart",
            turn="userPromptSubmitted",
            pre="preToolUse",
            post="postToolUse",
            end="agentStop",
        ),
    }
    session_fields = ("parent_agent_id", "session_id", "sessionId")
    wake_beginning = "<system_notification>"
    agent_fields = ("agent_id",)
    parent_fields = ("parent_agent_id",)
    tool_fields = ("tool_name", "toolName")
    input_fields = ("tool_input", "toolArgs")
    root_variables = ("COPILOT_PROJECT_DIR", "CLAUDE_PROJECT_DIR")
    context_form: ClassVar = {"additionalContext": "{text}", **Host.context_form}
    answer_form = Claude.answer_form
    _denial: ClassVar = {"permissionDecision": "deny", "permissionDecisionReason": "{text}"}
    block_forms: ClassVar = {
        EventPhase.TURN: Claude.answer_form,
        EventPhase.PRE: {
            **_denial,
            "hookSpecificOutput": {"hookEventName": "PreToolUse", **_denial},
        },
    }
    read_only_tools = words(
        "Glob Grep Read WebFetch ask_user fetch_copilot_cli_documentation glob grep list_bash "
        "read_bash report_intent rg update_todo view web_fetch"
    ) | words("Agent task")  # the agent that it starts tells calls of its own
    path_fields: ClassVar = {
        **dict.fromkeys(("create", "edit"), ("path",)),
        **dict.fromkeys(("Edit", "Write"), ("file_path", "path")),
    }
    patch_fields: ClassVar = {"apply_patch": ("input", "patch")}
    background_inputs: ClassVar = {"mode": "async"}


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

    name = "opencode"
    phases = by_name(
        session="session.created",
        turn="chat.message",
        pre="tool.execute.before",
        post="tool.execute.after",
        end="session.idle",
    )
    event_fields = ("event",)
    session_fields = ("sessionID",)
    key_fields: ClassVar = {EventPhase.TURN: ("messageID",), EventPhase.PRE: ("callID",)}
    root_fields = ("directory",)
    tool_fields = ("tool",)
    input_fields = ("args",)
    call_fields = ("callID",)
    path_fields: ClassVar = dict.fromkeys(("edit", "write"), ("filePath",))
    patch_fields: ClassVar = dict.fromkeys(("apply_patch", "patch"), ("patchText",))
    warning_field = "warning"
    context_form: ClassVar = {"context": "{text}"}
    read_only_tools = words(
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

    name = "cline"
    phases = by_name(
        session="TaskResume",
        turn="TaskStart UserPromptSubmit",
        pre="PreToolUse tool_call",
        post="PostToolUse tool_result",
        end="TaskComplete",
    )
    event_fields = ("hookName",)
    session_fields = ("sessionContext.rootSessionId", "taskId")
    parent_fields = ("parent_agent_id",)
    key_fields: ClassVar = {EventPhase.PRE: ("tool_call.id",)}
    root_fields = ("workspaceRoots.0", "workspaceRoots.0.path", "cwd")
    tool_fields = ("tool_call.name", "tool_result.name", "preToolUse.toolName")
    input_fields = ("tool_call.input", "tool_result.input", "preToolUse.parameters")
    call_fields = ("tool_call.id", "tool_result.id")
    path_fields: ClassVar = {"editor": ("path",)}
    prompt_fields = (
        "userPromptSubmit.prompt",
        "taskStart.taskMetadata.initialTask",
        "taskStart.task",
        "prompt",
        "task",
    )
    begins_with_prompt = True
    waits_for_turn = False
    nothing = '{"cancel": false}\n'
    context_form: ClassVar = {"cancel": False, "contextModification": "{text}"}
    blocked_phases = frozenset({EventPhase.PRE})
    block_forms: ClassVar = {EventPhase.PRE: {"cancel": True, "errorMessage": "{text}"}}
    read_only_tools = words(
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

    name = "cursor"
    phases = by_name(
        session="sessionStart",
        turn="beforeSubmitPrompt",
        pre="preToolUse beforeShellExecution beforeMCPExecution",
        post="postToolUse afterFileEdit",
        end="stop",
    )
    session_fields = ("conversation_id", "session_id")
    key_fields: ClassVar = {EventPhase.TURN: ("generation_id",), EventPhase.PRE: ("tool_use_id",)}
    root_variables = ("CURSOR_PROJECT_DIR",)
    root_fields = ("workspace_roots.0", "cwd")
    tool_fields = ("tool_name", "hook_event_name")  # of events of a single tool
    input_fields = ("tool_input", "")
    repeats_input = False  # an event of a single tool tells it in its own fields
    context_form: ClassVar = {}
    answer_form: ClassVar = {"continue": False, "user_message": "{text}"}
    block_forms: ClassVar = {EventPhase.TURN: answer_form}
    read_only_tools = words("Glob Grep List Read SemanticSearch WebSearch")


class Windsurf(Host):
    """Windsurf.

    An action has its own name for each tool. The payload has no root, and the directory of a
    command is not it: hooks are started in the workspace. A reply has no place for a context.
    """

    name = "windsurf"
    phases = by_name(
        turn="pre_user_prompt",
        pre="pre_write_code pre_run_command pre_mcp_tool_use",
        post="post_write_code post_run_command post_mcp_tool_use",
        end="post_cascade_response",
    )
    event_fields = ("agent_action_name",)
    session_fields = ("trajectory_id",)
    key_fields: ClassVar = {EventPhase.TURN: ("execution_id",)}
    begins_with_prompt = True
    root_fields = ()
    tool_fields = ("tool_info.mcp_tool_name", "agent_action_name")
    input_fields = ("tool_info",)
    repeats_input = False
    prompt_fields = ("tool_info.user_prompt",)
    context_form: ClassVar = {}


class Kiro(Host):
    """Kiro CLI.

    Its payloads name no session and have no ids, so all sessions in a root are one, and each call
    is a step. What a prompt hook prints is added to the prompt, and its exit code stops nothing.
    """

    name = "kiro"
    phases = by_name(
        session="agentSpawn",
        turn="userPromptSubmit",
        pre="preToolUse",
        post="postToolUse",
        end="stop",
    )
    session_default = "kiro"
    begins_with_prompt = True  # in its editor
    blocked_phases = frozenset({EventPhase.PRE})
    context_form = "{text}"
    read_only_tools = words("code fs_read glob grep introspect read thinking web_fetch web_search")


class VisualStudioCode(Host):
    """The agent of VS Code.

    A reply to a prompt can show the user a message, but tell the model nothing.
    """

    name = "vscode"
    session_fields = ("session_id", "sessionId")
    warning_field = "systemMessage"
    context_form: ClassVar = {"systemMessage": "{text}"}
    read_only_tools = words(
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
