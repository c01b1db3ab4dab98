"""Going back to before prompts and tool calls, with what others did since then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prepared import Prepared
from treesnap.agents.event import Event
from treesnap.agents.hook import record
from treesnap.agents.rewind import RewindRequest, RewindResult, rewind
from treesnap.agents.sessions import note_gap
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.sampled(4)

TURN, PRE, END = EventPhase.TURN, EventPhase.PRE, EventPhase.END


class Agent:
    """An agent in a root, and the user beside it; both write files."""

    def __init__(self, directory: Path, begun_ns: int = 10**18) -> None:
        self.root = directory / "root"
        self.root.mkdir(exist_ok=True)
        self.times = iter(range(begun_ns, 2 * 10**18, 10**9))
        self.context = context_at(
            self.root,
            str(directory / "store"),
            fs=UnsyncedFileSystem(),
            clock_ns=lambda: next(self.times),
        )
        self.handle = Handle(self.context)

    host = "claude"

    def event(self, phase: EventPhase, words: str | None = None, session: str = "s1") -> Event:
        tool = "Bash" if phase is PRE else None
        prompt = words if phase is TURN else None
        summary = words if phase is PRE else None
        return Event(self.host, phase, str(self.root), session, "", tool, prompt, summary)

    def step(self, phase: EventPhase, words: str | None = None, session: str = "s1") -> None:
        record(self.context, self.event(phase, words, session))

    def work(self, prompt: str, **files: str) -> None:
        """Does what a prompt asks for: writes files, one with each call of a tool."""
        self.step(TURN, prompt)
        for name, text in files.items():
            self.step(PRE, f"write {name}")
            self.write(name, text)
        self.step(END)

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.root.iterdir())}

    def rewind(self, where: str = "1", **options: object) -> RewindResult:
        return rewind(self.context, RewindRequest(where)._replace(**options))


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("worked")
    agent = Agent(place)
    agent.write("a", "0")
    agent.work("first", a="1", b="1")
    agent.work("second", a="2", c="2")
    return Prepared(place)


@pytest.fixture
def agent(worked: Prepared) -> Iterator[Agent]:
    """Two prompts were carried out."""
    with worked.placed() as place:
        yield Agent(place, 10**18 + 10**12)


def conflicts(result: RewindResult) -> list[bytes]:
    return [change.path for change in result.restore.conflicts]


def verdicts(result: RewindResult) -> dict[bytes, str]:
    return {item.path: item.verdict.value for item in result.paths}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("where", "label", "files"),
    [
        ("1", "second", {"a": "1", "b": "1"}),
        ("2", "first", {"a": "0"}),
        ("step:3", "Bash: write b", {"a": "1"}),
        ("step:7", "Bash: write c", {"a": "2", "b": "1"}),
    ],
)
def test_the_files_are_as_before_a_prompt_or_a_call(agent, where, label, files):
    planned = agent.rewind(where, dry_run=True)
    assert agent.files() == {"a": "2", "b": "1", "c": "2"}

    result = agent.rewind(where)

    assert agent.files() == files
    assert (result.step.snapshot.label, conflicts(result), result.gaps) == (label, [], ())
    assert planned.restore.changes == result.restore.changes
    agent.handle.undo()
    assert agent.files() == {"a": "2", "b": "1", "c": "2"}


def test_a_session_that_only_asked_for_the_rewind_is_not_the_one_that_is_rewound(agent):
    agent.step(TURN, "snap rewind", "s2")
    agent.step(PRE, "snap rewind", "s2")

    assert agent.rewind().session.id == "s1"
    assert agent.files() == {"a": "1", "b": "1"}


def test_a_session_of_which_nothing_was_captured_is_not_passed_over(agent):
    note_gap(agent.context, agent.event(PRE, session="s2"), "the disk was full")

    with pytest.raises(NotFound, match="s2"):
        agent.rewind()


class TestHostThatDoesNotWaitForTheHookOfAPrompt:
    """A tool of Cline may be done before the files are captured that its prompt began with."""

    @pytest.fixture
    def agent(self, agent):
        agent.host = "cline"
        return agent

    def overtaken(self, agent, session="s2"):
        for name in ("a", "d"):
            agent.step(PRE, f"write {name}", session)
            agent.write(name, "overtaken")
        agent.step(TURN, "late", session)
        agent.step(END, session=session)

    def test_what_it_did_before_is_undone_as_well(self, agent):
        self.overtaken(agent)
        self.overtaken(agent)
        agent.write("e", "user")

        result = agent.rewind("2")

        assert result.step.number == 1
        assert agent.files() == {"a": "2", "b": "1", "c": "2", "e": "user"}
        assert agent.rewind("1").step.number == 5

    def test_calls_that_may_be_of_the_prompt_before_are_not(self, agent):
        agent.step(TURN, "interrupted", "s2")
        self.overtaken(agent)

        assert agent.rewind("1").step.snapshot.label == "late"
        assert agent.rewind("2").step.snapshot.label == "interrupted"

    def test_nor_are_calls_in_a_host_that_waits(self, agent):
        agent.host = "claude"
        self.overtaken(agent)

        assert agent.rewind("1").step.snapshot.label == "late"


def test_any_other_reference_is_fine(agent):
    snapshot = agent.handle.create(name="by hand").snapshot
    agent.work("third", a="3")

    for ref in ("by hand", snapshot.id[:16]):
        result = agent.rewind(ref, session_id="s1")

        assert result.step is None
        assert agent.files() == {"a": "2", "b": "1", "c": "2"}


def test_what_others_changed_since_the_turn_ended_is_kept(agent):
    agent.write("a", "user")
    agent.write("new", "user")

    result = agent.rewind()

    assert agent.files() == {"a": "user", "b": "1", "new": "user"}
    assert conflicts(result) == [b"a", b"new"]


def test_what_others_changed_can_be_overwritten(agent):
    agent.write("a", "user")
    agent.write("new", "user")

    result = agent.rewind(overwrites=True)

    assert agent.files() == {"a": "1", "b": "1"}
    assert conflicts(result) == [b"a", b"new"]


def test_an_agent_in_another_session_is_one_of_the_others(agent):
    agent.step(PRE, "write a", "s2")
    agent.write("a", "s2")
    agent.step(END, None, "s2")

    result = agent.rewind(session_id="s1")

    assert agent.files() == {"a": "s2", "b": "1"}
    assert conflicts(result) == [b"a"]


def test_the_session_that_did_something_last_is_meant(agent):
    agent.step(TURN, "other", "s2")
    agent.step(PRE, "write a", "s2")
    agent.write("a", "s2")
    agent.step(END, None, "s2")

    assert agent.rewind().session.id == "s2"
    assert agent.files()["a"] == "2"


class TestAfterARewind:
    def test_the_next_one_goes_further_back(self, agent):
        agent.rewind()

        result = agent.rewind("2")

        assert agent.files() == {"a": "0"}
        assert conflicts(result) == []

    def test_the_same_again_changes_nothing(self, agent):
        agent.rewind()

        assert agent.rewind().restore.safety_id is None

    def test_what_was_kept_and_what_was_changed_since_is_kept(self, agent):
        agent.write("c", "user")
        agent.rewind()
        agent.write("b", "user")

        result = agent.rewind("2")

        assert agent.files() == {"a": "0", "b": "user", "c": "user"}
        assert conflicts(result) == [b"b", b"c"]

    def test_a_deleted_prompt_of_it_is_passed_over(self, agent):
        agent.handle.delete(agent.rewind().restore.snapshot.id)

        result = agent.rewind()

        assert result.step.snapshot.label == "first"
        assert conflicts(result) == []
        assert agent.files() == {"a": "0"}

    def test_where_what_it_restored_is_deleted_that_is_a_change_by_others(self, agent):
        agent.rewind()
        gone = [item for item in agent.handle.list() if (item.label or "").startswith("rewind to")]
        agent.handle.delete(*[item.id for item in gone])

        result = agent.rewind("2")

        assert verdicts(result) == {b"a": "conflict", b"b": "perhaps", b"c": "kept"}
        assert agent.files() == {"a": "1"}

    def test_it_is_undone_by_one_to_a_later_step(self, agent):
        agent.write("u", "user")
        agent.rewind("2")

        result = agent.rewind("step:7")

        assert agent.files() == {"a": "2", "b": "1", "u": "user"}
        assert conflicts(result) == [b"u"]

    def test_an_undo_leads_to_what_the_agent_left(self, agent):
        agent.rewind()
        agent.handle.undo()

        assert conflicts(agent.rewind("2")) == []
        assert agent.files() == {"a": "0"}

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("verbs", [["undo"], ["undo", "redo"], ["undo", "redo", "undo"]])
    def test_what_an_undo_brought_back_of_others_is_kept(self, agent, verbs):
        agent.write("a", "user")
        agent.rewind(overwrites=True)
        for verb in verbs:
            getattr(agent.handle, verb)()
        is_back = agent.files()["a"] == "user"

        result = agent.rewind("2")

        assert agent.files() == ({"a": "user"} if is_back else {"a": "0"})
        assert conflicts(result) == ([b"a"] if is_back else [])

    def test_what_a_snapshot_of_others_brought_back_is_kept(self, agent):
        agent.write("a", "user")
        agent.handle.create(name="by the user")
        agent.rewind(overwrites=True)
        agent.handle.restore("by the user")

        assert conflicts(agent.rewind()) == [b"a"]
        assert agent.files()["a"] == "user"


class TestWithoutAKnownEnd:
    """A call may still be at work, so what changed since it began goes back as perhaps its own."""

    def test_while_a_turn_is_under_way(self, agent):
        agent.step(TURN, "third")
        agent.step(PRE, "write a")
        agent.write("a", "3")
        agent.write("b", "user")

        result = agent.rewind()

        assert agent.files() == {"a": "2", "b": "1", "c": "2"}
        assert verdicts(result) == {b"a": "perhaps", b"b": "perhaps"}

    def test_after_a_gap(self, agent):
        note_gap(agent.context, agent.event(PRE), "it took too long")
        agent.write("a", "3")

        result = agent.rewind()

        assert agent.files() == {"a": "1", "b": "1"}
        assert [gap.reason for gap in result.gaps] == ["it took too long"]


def test_gaps_from_before_are_not_listed(tmp_path):
    agent = Agent(tmp_path)
    agent.work("first", a="1")
    note_gap(agent.context, agent.event(PRE), "it took too long")
    agent.work("second", a="2")

    result = agent.rewind()

    assert result.gaps == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("typed", ["snap rewind", "snap rewind 2 --theirs", "snap list"])
def test_a_command_that_is_typed_as_a_prompt_is_no_work(agent, typed):
    agent.step(TURN, typed)
    agent.step(PRE, typed)
    agent.write("a", "user")

    result = agent.rewind()
    agent.step(END)

    assert agent.files() == {"a": "user", "b": "1"}
    assert conflicts(result) == conflicts(agent.rewind("2")) == [b"a"]


@pytest.mark.parametrize("phase", [TURN, PRE])
@pytest.mark.parametrize(
    "words", ["snap undo all of it", "snap list a", "snap rewind && rm a", "snap decision", "rm a"]
)
def test_what_only_begins_like_one_is_work(agent, phase, words):
    """So a call may have deleted the file; while no call is open, others did."""
    agent.step(TURN, words if phase is TURN else "third")
    if phase is PRE:
        agent.step(PRE, words)
    (agent.root / "a").unlink()

    assert agent.rewind().step.number == 9
    assert ("a" in agent.files()) == (phase is PRE)


@pytest.mark.parametrize(
    ("where", "session", "error", "words"),
    [
        ("0", None, InvalidArgument, "1 or more"),
        ("3", None, NotFound, "of the session 's1', 2 prompts can be undone"),
        ("step:99", None, NotFound, "no 'step:99'"),
        ("1", "s9", NotFound, "the session 's9' of an agent"),
        ("no such", None, NotFound, "no snapshot 'no such'"),
        ("1234567", None, NotFound, "no snapshot '1234567'"),
    ],
)
def test_what_is_not_there_is_said(agent, where, session, error, words):
    with pytest.raises(error, match=f"(?i){words}"):
        agent.rewind(where, session_id=session)

    assert agent.files() == {"a": "2", "b": "1", "c": "2"}


def test_without_a_session_there_is_nothing_to_rewind(tmp_path):
    agent = Agent(tmp_path)
    agent.write("a", "0")
    agent.handle.create(session="s1", step=1)

    with pytest.raises(NotFound) as caught:
        agent.rewind()

    assert caught.value.code is ErrorCode.SESSION_NOT_FOUND
