"""References lead a model to the directories of its server alone; no answer tells of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

import treesnap
from mcp_client import ask, mcp, served, talk, unreadable
from sampling import sized
from treesnap.agents.mcp.tools import CallMonitor
from treesnap.core.model.errors import WarningCode

pytestmark = pytest.mark.sampled(10)

REQUIRED = {"ref": "latest", "path": "text", "token": "none", "session_id": "s"}
"""What a tool is given for a parameter that has no default, while another one is tried."""


class World(NamedTuple):
    """A store with roots that are served, and with others."""

    own: treesnap.Handle
    second: treesnap.Handle
    """Served as well."""
    pairs: list[tuple[str, str]]
    """What names something of another root, and what looks the same and names nothing."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    def root(name: str) -> treesnap.Handle:
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text(f"{name}-content\n")
        return treesnap.open(tmp_path / name, tmp_path / "store", wait_s=5)

    own, second, other = root("own"), root("second"), root("secret")
    made = own.create(label="first")
    second.create(label="second")
    (tmp_path / "secret" / "secret-file").write_text("secret-content\n")
    hidden = other.create(
        label="secret-label", name="secret-name", session="secret-session", step=77,
        tags={"secret-tag": "secret-value"}, type="safe_state",
    )  # fmt: skip
    own.fork(made.id, [tmp_path / "secret-fork"])
    forked = treesnap.open(tmp_path / "secret-fork", own.store_path)
    (tmp_path / "secret-fork" / "text").write_text("secret-change\n")
    with served(other) as elsewhere:
        token = ask(elsewhere, "restore_plan", ref=hidden.id)["token"]
    ids = [hidden.id, forked.create(label="secret-label").id, *(item.id for item in forked.list())]
    absent = "0123456789abcdef" * 4
    directory = str(tmp_path / "secret")
    return World(
        own,
        second,
        [
            *((identity, absent) for identity in ids),
            *((identity[:12], absent[:12]) for identity in ids),
            *((identity[:40], absent[:40]) for identity in ids),
            *((f"snap://{identity}/text", f"snap://{absent}/text") for identity in ids),
            (f"snap://{hidden.id[:12]}/secret-file", f"snap://{absent[:12]}/secret-file"),
            (str(tmp_path / "secret-fork"), str(tmp_path / "absent-fork")),
            ("secret-name", "absent-name"),
            ("secret-session", "absent-session"),
            ("latest@secret-session", "latest@absent-session"),
            ("latest:safe_state", "latest:manual"),
            ("step:77", "step:78"),
            (token, absent[:32]),
            (directory, str(tmp_path / "absent")),
            (f"{directory}/secret-file", str(tmp_path / "absent" / "secret-file")),
            ("../secret/secret-file", "../absent/secret-file"),
            ("secret-file", "absent-file"),
        ],
    )


def texts(schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yields the parameters of a tool that take text, each with what makes an argument of one."""
    for name, parameter in schema["properties"].items():
        kinds = [parameter, *parameter.get("anyOf", ())]
        if any(kind.get("type") == "string" for kind in kinds):
            yield name, str
        elif any(kind.get("type") == "array" for kind in kinds):
            yield name, lambda text: [text]


def plain(text: str) -> str:
    """Returns a text as it is once it was taken for a path."""
    return text.removeprefix("../").removeprefix("snap://")


def test_no_parameter_of_any_tool_leads_into_another_root(world):
    async def script(client: Any) -> list[tuple[str, str, str, Any, Any]]:
        told = []
        tools = (await client.list_tools()).tools
        for tool in sorted(tools, key=lambda tool: not tool.annotations.read_only_hint):
            schema = tool.input_schema
            needed = {name: REQUIRED[name] for name in schema.get("required", ())}
            for name, argument in texts(schema):
                for pair in world.pairs[:: sized(3, 1)]:
                    answers = [
                        await client.session.send_request(
                            mcp.types.CallToolRequest(
                                params=mcp.types.CallToolRequestParams(
                                    name=tool.name, arguments=needed | {name: argument(text)}
                                )
                            ),
                            mcp.types.CallToolResult,
                        )
                        for text in pair
                    ]
                    told.append((tool.name, name, pair, *answers))
        return told

    with served(world.own, world.second) as server:
        told = talk(server, script)

    tried = {(tool, name) for tool, name, *_ in told}
    assert tried >= {("show", "ref"), ("diff", "a"), ("diff", "b"), ("diff", "paths")}
    assert tried >= {("read", "ref"), ("find", "ref"), ("list", "session"), ("list", "root")}
    assert tried >= {("restore_plan", "ref"), ("restore_apply", "token")}
    for tool, name, (foreign, absent), there, nowhere in told:
        where = (tool, name, foreign)
        assert there.is_error == nowhere.is_error, where
        said = [item.text for item in there.content]
        if there.is_error:
            same = [renamed(item.text, plain(absent), plain(foreign)) for item in nowhere.content]
            assert said == same, where
        without_argument = renamed("".join(said), plain(foreign), "")
        assert "secret" not in without_argument, where


def renamed(text: str, old: str, new: str) -> str:
    """Returns a text with another name in it, also where an answer has only the beginning."""
    text = text.replace(old, new)
    for length in range(len(old) - 1, len(old) // 2, -1):
        text = text.replace(f'{old[:length]}"', f'{new[:length]}"')
    return text


def test_no_resource_leads_into_another_root(world):
    def told(server: Any, ref: str, path: str) -> Any:
        error = unreadable(server, f"snap://{quote(ref, safe='')}/{path}")
        return error.message, error.data

    with served(world.own, world.second) as server:
        for foreign, absent in world.pairs:
            for path in ("text", "secret-file"):
                there, nowhere = told(server, foreign, path), told(server, absent, path)
                assert json.dumps(there) == json.dumps(nowhere).replace(absent, foreign)


def test_both_roots_of_a_server_are_in_reach(world):
    identity = world.second.list()[0].id
    with served(world.own, world.second) as server:
        assert ask(server, "show", ref=identity)["label"] == "second"
        read = talk(server, lambda client: client.read_resource(f"snap://{identity[:12]}/text"))

    assert read.contents[0].text == "second-content\n"


def test_lists_and_warnings_tell_of_no_other_root(world, tmp_path):
    """Not even where this one looks like the other, moved."""
    (tmp_path / "secret").rename(tmp_path / "moved")
    with served(treesnap.open(tmp_path / "own", world.own.store_path)) as server:
        answers = [
            ask(server, "checkpoint"),
            ask(server, "list"),
            ask(server, "find", pattern="*"),
            ask(server, "diff"),
        ]

    assert "secret" not in json.dumps(answers)


@pytest.mark.parametrize("code", [WarningCode.MAINTENANCE_FAILED, WarningCode.GARBAGE_KEPT])
def test_a_warning_about_the_whole_store_names_no_root(code):
    """Room is made in all roots of a store, and the warning says in which one that failed."""
    monitor = CallMonitor()

    monitor.warn(code, "Old snapshots of '/secret' could not be removed")

    ((told, message),) = monitor.warnings
    assert told is code
    assert "secret" not in message


@pytest.mark.needs("birth times")
def test_a_root_that_was_moved_stays_in_reach(world, tmp_path):
    identity = world.own.list()[0].id
    (tmp_path / "own").rename(tmp_path / "new")
    moved = treesnap.open(tmp_path / "new", world.own.store_path)
    with served(world.second, moved) as server:
        assert ask(server, "list", root=moved.root)["total"] == 1
        assert ask(server, "show", ref=identity)["label"] == "first"
