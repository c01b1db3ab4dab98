"""Rewinds where several agents and the user work in one root, on real files."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from attribution_model import Rates, World, fold, opened
from sampling import sized
from treesnap.agents.attribution import Whose
from treesnap.agents.event import Event
from treesnap.agents.git_head import git_head, parsed_head
from treesnap.agents.hook import in_its_worktree, record
from treesnap.agents.marks import MARKS_FILE, MarkPhase, marks_in
from treesnap.agents.rewind import RewindRequest, RewindResult, rewind
from treesnap.agents.sessions import note_gap
from treesnap.core.handle import Handle
from treesnap.core.model.errors import InvalidArgument, NotFound, StorageFull
from treesnap.core.ops.access import opened as opened_store
from treesnap.core.ops.context import Context, context_at, find_root, is_worktree
from treesnap.core.ops.history.steps import EventPhase
from treesnap.testing.doubles import MUTATING, Call, UnsyncedFileSystem, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)

TURN, WAKE, PRE = EventPhase.TURN, EventPhase.WAKE, EventPhase.PRE
POST, END = EventPhase.POST, EventPhase.END


class Place:
    """A root in which sessions and the user work."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.root.mkdir()
        self.context = context_at(self.root, str(directory / "store"), fs=UnsyncedFileSystem())
        self.handle = Handle(self.context)

    def tell(self, phase: EventPhase, session: str = "a", call: str = "", **fields: object) -> None:
        named = fields.pop("names", None)
        paths = named and tuple(os.fsencode(self.root / name) for name in named)
        tool = "Bash" if phase in (PRE, POST) else None
        event = Event("claude", phase, str(self.root), session, tool=tool, call=call, paths=paths)
        record(self.context, event._replace(**fields))

    def miss(
        self, session: str = "a", call: str = "", phase: EventPhase = PRE, **fields: object
    ) -> None:
        event = Event("claude", phase, str(self.root), session, tool="Bash", call=call)
        note_gap(self.context, event._replace(**fields), "the disk was full")

    def call(self, session: str = "a", names: tuple[str, ...] | None = None, **files: str | None):
        """Runs a tool that writes files."""
        self.tell(PRE, session, "k", names=names)
        for name, text in files.items():
            self.write(name, text)
        self.tell(POST, session, "k")

    def write(self, name: str, text: str | None) -> None:
        path = self.root / name.replace("__", "/")
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".git" not in path.parts
        }

    def rewind(self, where: str = "1", session: str = "a", **options: object) -> RewindResult:
        request = RewindRequest(where, session)._replace(**options)
        return rewind(self.context, request)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def verdicts(result: RewindResult) -> dict[bytes, str]:
    return {item.path: item.verdict.value for item in result.paths}


class RealWorld(World):
    """The world of the model, in a real root with real snapshots."""

    place: Place

    def write(self, who: str, path: str) -> None:
        super().write(who, path)
        file = self.place.root / path
        if path in self.live:
            file.write_text(f"{self.live[path]}")
        else:
            file.unlink(missing_ok=True)

    def tell(self, session, phase, key="", paths=None):
        super().tell(session, phase, key, paths)
        if phase == "background":
            self.place.tell(PRE, session, key)
            self.place.tell(POST, session, key, is_background=True)
        elif phase == "settled":
            self.place.tell(WAKE, session, settled=(key,))
        else:
            names = paths and tuple(sorted(paths))
            self.place.tell(EventPhase(phase), session, key, names=names)


class FullFileSystem(WrappedFileSystem):
    """Has no room for what a restore builds, nor for any other."""

    def around(self, call: Call) -> object:
        """Makes the call."""
        if call.method == "free_bytes":
            return 0
        if call.kind in MUTATING and any(".treesnap-restore-" in path for path in call.paths):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call.proceed()


@pytest.mark.parametrize("replaces", [False, True])
def test_what_others_put_into_a_directory_of_the_agent_that_it_removed_comes_back(place, replaces):
    place.write("file", "old")
    place.tell(TURN)
    place.call(inner__deep__mine="agent")
    place.tell(TURN, "b")
    place.call("b", inner__deep__theirs="other")
    place.tell(PRE, call="k2")
    shutil.rmtree(place.root / "inner")
    if replaces:
        place.write("inner", "agent")
    place.tell(POST, call="k2")

    result = place.rewind()

    assert place.files() == {"file": "old", "inner/deep/theirs": "other"}
    assert verdicts(result)[b"inner/deep/theirs"] == "back-to-others"


def test_what_cannot_come_back_because_its_directory_is_something_else_is_said(place):
    place.write("file", "old")
    place.tell(TURN)
    place.call(inner__mine="agent")
    place.tell(TURN, "b")
    place.call("b", inner__theirs="other")
    place.tell(PRE, call="k2")
    shutil.rmtree(place.root / "inner")
    place.tell(POST, call="k2")
    place.write("inner", "user")

    result = place.rewind()

    assert place.files() == {"file": "old", "inner": "user"}
    assert verdicts(result)[b"inner/theirs"] == "blocked"


class TestOnAFullDisk:
    """What a way back was made from stays, although others are given up for room, in vain."""

    @pytest.fixture
    def full(self, place) -> Context:
        for name in ("mine", "theirs"):
            place.write(name, "old")
        place.tell(TURN)
        place.call(mine="agent")
        place.tell(TURN, "b")
        place.call("b", theirs="other")
        place.write("user", "user")
        place.call(more="agent")
        return place.context._replace(fs=FullFileSystem(UnsyncedFileSystem()))

    @pytest.mark.parametrize("overwrites", [False, True])
    def test_a_rewind_can_be_repeated(self, place, full, overwrites):
        after = place.files()
        with pytest.raises(StorageFull):
            rewind(full, RewindRequest("1", "a", overwrites=overwrites))
        assert place.files() == after

        place.rewind()

        assert place.files() == {"mine": "old", "theirs": "other", "user": "user"}

    def test_a_revert_can_be_repeated(self, place, full):
        with pytest.raises(StorageFull):
            Handle(full).revert("step:2", session="a")

        place.handle.revert("step:2", session="a")

        assert place.files()["mine"] == "old"


@pytest.mark.parametrize("seed", range(sized(12, 400)))
def test_real_roots_go_where_the_model_goes(seed, place):
    chooser = random.Random(seed)
    world = RealWorld(chooser, Rates(sneaks=0.2, interruptions=0.1, late=0.2))
    world.place = place
    for path, version in world.live.items():
        (place.root / path).write_text(f"{version}")
    for _ in range(chooser.randrange(20, 80)):
        world.step()
    for session in "ab":
        if not world.targets[session]:
            continue
        targets = len(world.targets[session])
        count = chooser.randrange(1, targets + 1)
        world.capture()
        spans = opened(world.told, len(world.states))
        target = world.targets[session][-count]
        found = fold(world.states, spans, {}, session, target)
        expected = {path: f"{version}" for path, version in world.live.items()}
        for path, verdict in found.items():
            expected.pop(path, None)
            if verdict.value is not None:
                expected[path] = f"{verdict.value}"

        planned = place.rewind(f"{count}", session, dry_run=True)
        result = place.rewind(f"{count}", session)

        assert place.files() == expected
        assert verdicts(result) == {
            path.encode(): verdict.what for path, verdict in found.items()
        } | {path: what for path, what in verdicts(result).items() if path.decode() not in found}
        assert planned.restore.changes == result.restore.changes
        place.handle.undo() if result.restore.safety_id else None
        assert place.files() == {path: f"{version}" for path, version in world.live.items()}
        break


NAMES = ["d/f", "d/g", "d/e/f", "e", "e/f", "e/f/g", "f", "h/i"]


def put(root: Path, name: str, text: str | None) -> bool:
    """Writes or removes a file; what is in the way goes first, directories above are made."""
    path = root / name
    for above in [*reversed(path.relative_to(root).parents)][1:]:
        if (root / above).is_file():
            return False
    if path.is_dir():
        return False
    if text is None:
        path.unlink(missing_ok=True)
        for above in list(path.relative_to(root).parents)[:-1]:
            if (root / above).is_dir() and not any((root / above).iterdir()):
                (root / above).rmdir()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return True


@pytest.mark.parametrize("seed", range(sized(25, 120)))
def test_what_others_left_survives_among_directories(seed, place):
    chooser = random.Random(seed)
    authors: dict[str, str] = {}
    put(place.root, chooser.choice(NAMES), "begin")
    place.tell(TURN)
    for number in range(chooser.randrange(5, 25)):
        who = chooser.choice(["a", "b", "user"])
        if who != "user":
            place.tell(PRE, who, "k")
        name = chooser.choice(NAMES)
        text = None if chooser.random() < 0.3 else f"{number}"
        if put(place.root, name, text) and text is not None:
            authors[text] = who
        if who != "user":
            place.tell(POST, who, "k")
        if who == "user":
            place.tell(TURN, "b")
    before = place.files()

    result = place.rewind(f"{1}", "a")

    after = place.files()
    for name, text in before.items():
        if authors.get(text, "a") != "a":
            assert after.get(name) == text, name
    assert place.rewind("1", "a").restore.safety_id is None
    if result.restore.safety_id is not None:
        place.handle.undo()
    assert place.files() == before


def test_each_agent_takes_back_its_own_work(place):
    place.write("x", "0")
    place.tell(TURN)
    place.tell(TURN, "b")
    place.call("a", x="a", y="a")
    place.call("b", z="b")
    place.write("u", "user")
    place.call("b", v="b")

    place.rewind(session="b")

    assert place.files() == {"x": "a", "y": "a", "u": "user"}
    result = place.rewind(session="a")
    assert place.files() == {"x": "0", "u": "user"}
    assert verdicts(result)[b"u"] == "kept"


def test_what_the_user_wrote_between_two_prompts_comes_back(place):
    place.tell(TURN)
    place.call(x="first")
    place.write("x", "user")
    place.tell(TURN)
    place.call(x="second")

    result = place.rewind("2")

    assert place.files() == {"x": "user"}
    assert verdicts(result) == {b"x": "back-to-others"}


def test_times_of_directories_go_back_with_what_the_agent_did_there(place):
    def times() -> dict[str, int]:
        return {name: (place.root / name).stat().st_mtime_ns for name in (".", "ours", "yours")}

    place.write("ours/a", "old")
    place.write("yours/a", "old")
    before = times()
    place.tell(TURN)
    place.call(ours__made="agent", yours__made="agent", top="agent")
    after = times()
    place.write("yours/mine", "user")
    mine = times()

    place.rewind()

    assert times() == {**before, "yours": mine["yours"]}
    assert place.files() == {"ours/a": "old", "yours/a": "old", "yours/mine": "user"}
    place.handle.undo()
    assert times() == {**after, "yours": mine["yours"]}
    place.rewind()
    assert times() == {**before, "yours": mine["yours"]}


@pytest.mark.parametrize(("host", "is_kept"), [("claude", True), ("a framework", False)])
def test_a_turn_without_a_call_changed_nothing_where_the_host_tells_calls(place, host, is_kept):
    place.write("x", "0")
    place.tell(TURN, host=host)
    place.write("x", "user")
    place.tell(END, host=host)

    result = place.rewind()

    assert place.files() == {"x": "user" if is_kept else "0"}
    assert verdicts(result) == {b"x": "kept" if is_kept else "perhaps"}


def test_calls_of_two_sessions_at_one_time_are_shared(place):
    place.write("x", "0")
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    place.tell(PRE, "b", "k", names=["y"])
    place.write("x", "?")
    place.write("y", "?")
    place.tell(POST, "b", "k")
    place.tell(POST, "a", "k")

    result = place.rewind()

    assert place.files() == {"x": "0", "y": "?"}
    assert verdicts(result) == {b"x": "undone", b"y": "shared"}
    assert [item.sessions for item in result.paths] == [(), ("b",)]
    place.rewind(widened=frozenset({Whose.SHARED}))
    assert place.files() == {"x": "0"}


def test_what_goes_on_in_the_background_is_kept_until_it_is_asked_for(place):
    place.tell(TURN)
    place.tell(PRE, "a", "server")
    place.tell(POST, "a", "server", is_background=True)
    place.write("log", "1")
    place.tell(WAKE, settled=("server",))
    place.write("u", "user")

    result = place.rewind()

    assert place.files() == {"log": "1", "u": "user"}
    assert verdicts(result) == {b"log": "unknown", b"u": "kept"}
    place.rewind(widened=frozenset({Whose.UNKNOWN}))
    assert place.files() == {"u": "user"}


def test_a_call_that_was_not_captured_makes_its_work_perhaps_its_own(place):
    place.tell(TURN)
    place.miss(call="k")
    place.write("x", "a")
    place.tell(POST, "a", "k")
    place.write("u", "user")

    result = place.rewind()

    assert verdicts(result) == {b"u": "kept", b"x": "perhaps"}
    assert place.files() == {"u": "user"}


@pytest.mark.parametrize("name", ["u.log", "logs__u"])
def test_what_is_excluded_by_now_is_not_called_overwritten(place, name):
    place.tell(TURN)
    place.write(name, "user")
    place.write("v", "user")
    place.call(x="a")
    place.write(".snapignore", "*.log\nlogs/\n")

    result = place.rewind(overwrites=True)

    path = os.fsencode(name.replace("__", "/"))
    assert path not in {change.path for change in result.restore.conflicts}
    assert b"v" in {change.path for change in result.restore.conflicts}
    assert place.files() == {path.decode(): "user"}


@pytest.mark.parametrize("named", ["k", ""])
def test_a_call_whose_end_was_not_captured_is_not_open_for_ever(place, named):
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    place.write("x", "a")
    place.miss("a", named, POST)
    place.call(y="a")
    place.write("u", "user")

    result = place.rewind()

    assert verdicts(result) == {b"u": "kept", b"x": "perhaps", b"y": "undone"}
    assert place.files() == {"u": "user"}


@pytest.mark.parametrize(
    ("phase", "fields"), [(TURN, {}), (END, {}), (WAKE, {"ends_agent": True, "agent": "helper"})]
)
def test_an_interrupted_call_ends_with_a_prompt_or_a_turn_that_was_not_captured(
    place, phase, fields
):
    place.tell(TURN)
    place.tell(PRE, "a", "k", agent=fields.get("agent", ""))
    place.write("x", "a")
    place.miss("a", "", phase, **fields)
    place.handle.create()
    place.write("u", "user")

    assert verdicts(place.rewind()) == {b"u": "kept", b"x": "perhaps"}
    assert place.files() == {"u": "user"}


def test_an_interrupted_call_ends_with_a_command_that_the_model_carries_out(place):
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    place.write("x", "a")
    place.tell(TURN, prompt="snap rewind")
    place.write("u", "user")
    place.tell(PRE, "a", "l", summary="snap rewind")

    assert verdicts(place.rewind()) == {b"u": "kept", b"x": "perhaps"}


def test_what_changes_while_the_model_carries_out_a_command_is_not_the_agents(place):
    place.tell(TURN)
    place.call(x="a")
    place.tell(TURN, prompt="snap list")
    place.tell(PRE, "a", "l", summary="snap list")
    place.write("u", "user")
    place.tell(POST, "a", "l")

    assert verdicts(place.rewind()) == {b"u": "kept", b"x": "undone"}


def test_what_follows_an_end_that_was_not_captured_may_be_the_calls_up_to_a_capture(place):
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    place.miss("a", "k", POST)
    place.write("x", "a or the user")
    place.handle.create()
    place.write("u", "user")

    assert verdicts(place.rewind()) == {b"u": "kept", b"x": "perhaps"}
    assert place.files() == {"u": "user"}


@pytest.mark.parametrize("ends", [True, False])
def test_an_agent_that_has_ended_has_no_call_open(place, ends):
    place.tell(TURN)
    place.tell(PRE, "a", "k", agent="helper")  # it is interrupted
    place.write("x", "a")
    place.tell(PRE, "a", "main", names=("m",))
    place.tell(WAKE, ends_agent=ends, agent="helper")
    place.write("u", "user")
    place.write("m", "a")
    place.tell(POST, "a", "main")

    result = place.rewind()

    others = "kept" if ends else "perhaps"
    assert verdicts(result) == {b"u": others, b"x": "perhaps", b"m": "undone"}


def test_the_end_of_an_agent_that_changed_nothing_takes_no_snapshot(place):
    place.tell(TURN)
    place.tell(WAKE, ends_agent=True, agent="helper")

    assert len(place.handle.list()) == 1


def test_a_background_task_whose_first_end_was_not_captured_goes_on(place):
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    event = Event("claude", POST, str(place.root), "a", tool="Bash", call="k", is_background=True)
    note_gap(place.context, event, "the disk was full")
    place.handle.create()
    place.write("x", "the task, or the user")

    assert verdicts(place.rewind()) == {b"x": "unknown"}


def test_a_background_task_whose_end_was_not_captured_may_go_on(place):
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    place.tell(POST, "a", "k", is_background=True)
    place.miss("a", "", WAKE, settled=("k",))
    place.write("x", "the task, or the user")

    assert verdicts(place.rewind()) == {b"x": "unknown"}


def test_a_call_that_changed_nothing_has_ended_all_the_same(place):
    place.tell(TURN)
    place.call()
    place.write("u", "user")

    assert verdicts(place.rewind()) == {b"u": "kept"}
    steps = [item for item in place.handle.list() if item.session == "a"]
    assert len(steps) == 2  # the prompt, and the call: nothing for its end
    assert place.files() == {"u": "user"}


def test_paths_alone_go_back(place):
    place.tell(TURN)
    place.call(d__x="a", y="a")

    result = place.rewind(paths=(b"d",))

    assert place.files() == {"y": "a"}
    assert verdicts(result) == {b"d": "undone", b"d/x": "undone"}


def test_times_of_directories_elsewhere_stay_where_paths_alone_go_back(place):
    place.write("d/f", "before")
    place.write("e/f", "before")
    place.tell(TURN)
    place.call(d__g="a", e__g="a")
    time_ns = (place.root / "e").stat().st_mtime_ns

    place.rewind(paths=(b"d",))

    assert not (place.root / "d" / "g").exists()
    assert (place.root / "e").stat().st_mtime_ns == time_ns


def test_a_path_that_is_in_no_state_is_refused(place):
    place.tell(TURN)
    place.call(x="a")
    place.call(x=None)

    with pytest.raises(NotFound, match="neither now nor since then"):
        place.rewind(paths=(b"y",))
    assert verdicts(place.rewind(paths=(b"x",))) == {b"x": "kept"}


def test_what_was_imported_was_never_in_the_root(place, tmp_path):
    place.write("x", "before")
    place.tell(TURN)
    place.call(x="a")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("imported")
    place.handle.import_from(tmp_path / "elsewhere")
    place.call(x="a, too")

    assert verdicts(place.rewind()) == {b"x": "undone"}
    assert place.files() == {"x": "before"}


def test_what_a_revert_brought_back_is_undone_as_before_it(place):
    place.write("x", "before")
    place.tell(TURN)
    place.call(x="a")
    place.call(x="a, too")
    place.handle.revert("step:4", session="a")
    assert place.files() == {"x": "a"}

    assert verdicts(place.rewind()) == {b"x": "undone"}
    assert place.files() == {"x": "before"}


def test_what_the_user_wrote_beside_a_restore_of_other_paths_is_kept(place):
    place.write("u", "before")
    place.tell(TURN)
    place.call(x="1", u="1")
    first = place.handle.list()[0]
    place.call(x="2", u="2")
    place.handle.restore(first.id, paths=["x"])
    place.write("u", "1")  # as in what was restored

    assert verdicts(place.rewind()) == {b"x": "undone", b"u": "conflict"}
    assert place.files() == {"u": "1"}


def test_a_directory_stays_with_what_others_put_into_it(place):
    place.tell(TURN)
    place.call(d__x="a", d__e__y="a")
    place.write("d/u", "user")

    place.rewind()

    assert place.files() == {"d/u": "user"}
    assert not (place.root / "d/e").exists()


def test_nothing_is_put_below_what_others_made_a_file(place):
    place.write("d/x", "0")
    place.tell(TURN)
    place.call(d__x=None)
    (place.root / "d").rmdir()
    place.write("d", "user")

    place.rewind()

    assert place.files() == {"d": "user"}


def test_names_of_one_file_are_one(place):
    place.write("x", "0")
    os.link(place.root / "x", place.root / "y")
    place.tell(TURN)
    place.call(names=("x",), x="a")

    assert set(verdicts(place.rewind()).values()) == {"undone"}
    assert place.files() == {"x": "0", "y": "0"}
    assert (place.root / "x").stat().st_ino == (place.root / "y").stat().st_ino


def test_without_a_root_all_comes_back(place):
    place.write("x", "0")
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    (place.root / "x").unlink()
    place.root.rmdir()

    place.rewind()

    assert place.files() == {"x": "0"}


def test_deleted_snapshots_of_another_session_do_not_make_its_work_the_own(place):
    place.tell(TURN)
    place.tell(PRE, "a", "long", names=None)
    place.tell(PRE, "b", "k")
    place.write("x", "b")
    place.tell(POST, "b", "k")
    place.write("y", "a")
    place.tell(POST, "a", "long")
    gone = [item.id for item in place.handle.list() if item.session == "b"]
    place.handle.delete(*gone)

    result = place.rewind()

    assert verdicts(result) == {b"x": "shared", b"y": "shared"}
    assert place.files() == {"x": "b", "y": "a"}


def test_without_the_snapshots_between_nothing_is_certainly_the_own(place):
    place.tell(TURN)
    place.call(x="a")
    place.write("u", "user")
    place.tell(END)
    place.call(y="a")
    kept = [item.id for item in place.handle.list() if item.step in (1, 4, 5, 6)]
    place.handle.delete(*(item.id for item in place.handle.list() if item.id not in kept))

    planned = place.rewind(dry_run=True)

    assert verdicts(planned) == {b"x": "perhaps", b"u": "perhaps", b"y": "undone"}


@pytest.mark.parametrize("is_told", [True, False])
def test_what_is_told_to_a_root_below_is_not_certainly_the_own(place, is_told):
    place.write("inner/x", "0")
    inner = context_at(place.root / "inner", place.context.store_path, fs=UnsyncedFileSystem())
    record(inner, Event("claude", TURN, inner.root, "of another time"))
    place.tell(TURN)
    place.tell(PRE, "a", "k")
    if is_told:
        record(inner, Event("claude", PRE, inner.root, "b", tool="Bash", call="l"))
    place.write("x", "a")
    place.write("inner/x", "b")
    place.tell(POST, "a", "k")

    result = place.rewind()

    assert place.files() == ({"inner/x": "b"} if is_told else {"inner/x": "0"})
    assert verdicts(result) == {b"x": "undone", b"inner/x": "shared" if is_told else "undone"}
    place.rewind(widened=frozenset({Whose.SHARED}))
    assert place.files() == {"inner/x": "0"}


@pytest.mark.parametrize("name", [".git", ".hg", ".jj", ".sl"])
def test_what_refers_to_each_other_in_a_repository_is_kept_together(place, name):
    place.write(f"{name}/store/begin", "")
    place.tell(TURN)
    place.call(**{f"{name}/store/agent": "", "x": "a"})
    place.write(f"{name}/store/user", "after the agent's")

    result = place.rewind()

    assert verdicts(result) == {name.encode(): "conflict", b"x": "undone"}
    assert set(os.listdir(place.root / name / "store")) == {"agent", "begin", "user"}


def test_work_outside_of_the_root_is_named(place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    place.tell(TURN)
    place.tell(PRE, "a", "k", names=["../elsewhere/f", "x"])
    place.write("x", "a")
    place.tell(POST, "a", "k")
    place.tell(END, directory=str(tmp_path / "other"))

    result = place.rewind()

    names = [b"elsewhere", b"other"]
    assert result.outside == tuple(os.fsencode(tmp_path) + b"/" + name for name in names)
    assert verdicts(result) == {b"x": "undone"}


def test_work_outside_of_another_session_or_prompt_is_not_named(place, tmp_path):
    place.tell(TURN)
    place.tell(PRE, "a", "k", names=["../elsewhere/f"])
    place.tell(POST, "a", "k")
    place.tell(TURN)
    place.tell(PRE, "b", "k", names=["../another/f"])
    place.tell(POST, "b", "k")
    place.call(x="a")

    assert place.rewind().outside == ()
    assert place.rewind("2").outside == (os.fsencode(tmp_path / "elsewhere"),)


def test_only_states_of_the_whole_root_are_gone_back_to(place):
    place.write("x", "0")
    place.tell(TURN)
    place.call(x="a")
    part = place.handle.create(["x"]).snapshot

    with pytest.raises(InvalidArgument, match="not taken of the whole root"):
        place.rewind(part.id)


class TestMarks:
    def marks(self, place):
        with opened_store(place.context, "look") as session:
            return marks_in(session)

    def test_torn_lines_take_no_other_with_them(self, place):
        place.tell(TURN)
        path = next(Path(place.context.store_path).glob(f"roots/*/{MARKS_FILE}"))
        path.write_bytes(path.read_bytes()[:-5])
        place.call(x="a")

        assert [mark.phase for mark in self.marks(place)] == [MarkPhase.PRE, MarkPhase.POST]
        assert verdicts(place.rewind()) == {b"x": "undone"}

    @pytest.mark.parametrize("content", [b"\0" * 100, b"00000000 []\n", b"{}\n" * 9])
    def test_a_damaged_file_makes_changes_less_certain(self, place, content):
        place.tell(TURN)
        place.call(x="a")
        path = next(Path(place.context.store_path).glob(f"roots/*/{MARKS_FILE}"))
        path.write_bytes(content)

        assert self.marks(place) == []
        assert verdicts(place.rewind()) == {b"x": "undone"}  # the snapshots stand for them

    def test_a_line_that_was_changed_counts_for_nothing(self, place):
        place.tell(TURN)
        place.call(x="a")
        path = next(Path(place.context.store_path).glob(f"roots/*/{MARKS_FILE}"))
        path.write_bytes(path.read_bytes().replace(b'"pre"', b'"end"'))

        assert [mark.phase for mark in self.marks(place)] == [MarkPhase.TURN, MarkPhase.POST]

    def test_many_are_cut_to_the_newest(self, place, monkeypatch):
        monkeypatch.setattr("treesnap.agents.marks.MARKS_SIZE_MAX", 2000)
        place.tell(TURN)
        for _ in range(30):
            place.call()

        marks = self.marks(place)
        assert 5 < len(marks) < 30
        assert marks[-1].phase is MarkPhase.POST
        assert marks == sorted(marks, key=lambda mark: mark.time_ns)
        newest = place.handle.list()[0].sequence
        assert {mark.at for mark in marks} == set(range(marks[0].at, newest + 1))

    def test_a_call_of_many_paths_counts_as_one_of_any(self, place):
        place.tell(PRE, "a", "k", names=tuple(map(str, range(100))))
        place.tell(PRE, "a", "l", names=tuple(map(str, range(101))))

        first, second = self.marks(place)
        assert (len(first.paths), second.paths) == (100, None)

    def test_a_file_that_a_link_leads_to_is_one_of_the_call(self, place):
        place.write("x", "before")
        (place.root / "link").symlink_to("x")
        place.tell(TURN)
        place.call(names=("link",), x="a")

        assert verdicts(place.rewind()) == {b"x": "undone"}

    def test_an_event_that_is_told_again_leaves_no_second_mark(self, place):
        for _ in range(2):
            place.tell(PRE, "a", "k", key="k")

        assert len(self.marks(place)) == 1


def git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout


class TestRepositories:
    @pytest.fixture
    def place(self, place):
        git(place.root, "init", "-q", "-b", "main")
        place.write("x", "0")
        git(place.root, "add", ".")
        git(place.root, "commit", "-qm", "begin")
        return place

    def commit(self, directory: Path, message: str) -> None:
        git(directory, "add", ".")
        git(directory, "commit", "-qm", message)

    def log(self, place: Place) -> list[str]:
        git(place.root, "fsck", "--strict")
        return git(place.root, "log", "--format=%s").split()

    def test_a_commit_of_the_agent_goes_back_as_a_whole(self, place):
        place.tell(TURN)
        place.tell(PRE, "a", "k")
        place.write("x", "a")
        self.commit(place.root, "agent")
        place.tell(POST, "a", "k")

        place.rewind()

        assert self.log(place) == ["begin"]
        assert git(place.root, "status", "--porcelain") == ""

    def test_a_commit_of_the_user_on_top_keeps_the_repository(self, place):
        place.tell(TURN)
        place.tell(PRE, "a", "k")
        place.write("x", "a")
        self.commit(place.root, "agent")
        place.tell(POST, "a", "k")
        place.write("u", "user")
        self.commit(place.root, "user")

        result = place.rewind()

        assert self.log(place) == ["user", "agent", "begin"]
        assert place.files() == {"u": "user", "x": "0"}
        assert verdicts(result)[b".git"] == "conflict"

    def test_a_branch_that_is_kept_is_named_with_the_way_back(self, place):
        begin = git(place.root, "rev-parse", "HEAD").strip()
        place.tell(TURN)
        place.call(x="a")
        for name in ("u", "v"):
            place.write(name, "user")
            self.commit(place.root, name)

        now = git(place.root, "rev-parse", "HEAD").strip()
        assert place.rewind(dry_run=True).branch == ("main", begin, now)
        assert place.rewind().branch == ("main", begin, now)

    def test_a_branch_that_goes_back_is_not_named(self, place):
        place.tell(TURN)
        place.tell(PRE, "a", "k")
        self.commit_all(place, "x")
        place.tell(POST, "a", "k")

        assert place.rewind(dry_run=True).branch is None
        assert place.rewind().branch is None

    def commit_all(self, place: Place, name: str) -> None:
        place.write(name, "a")
        self.commit(place.root, "agent")

    @pytest.mark.parametrize("words", [["pack-refs", "--all"], ["checkout", "-q", "--detach"]])
    def test_where_a_repository_stands_is_read_from_its_files(self, place, words):
        git(place.root, *words)
        commit = git(place.root, "rev-parse", "HEAD").strip()

        head = git_head(str(place.root))

        assert head == ("main" if "pack-refs" in words else "", commit)
        assert parsed_head(head.text) == head

    def test_a_working_tree_has_its_own_branch(self, place):
        git(place.root, "worktree", "add", "-q", "-b", "side", "../side")
        commit = git(place.root, "rev-parse", "HEAD").strip()

        assert git_head(str(place.root.parent / "side")) == ("side", commit)

    @pytest.mark.parametrize(
        "head", ["", "ref: ", "ref: refs/heads/../../x", "ref: refs/heads/no", "zz"]
    )
    def test_a_head_that_leads_nowhere_is_none(self, place, head):
        (place.root / ".git/HEAD").write_text(head)

        assert git_head(str(place.root)) is None

    def test_the_index_that_a_prompt_of_a_shell_writes_is_no_change(self, place):
        place.tell(TURN)
        place.call(x="a")
        os.utime(place.root / "x", (1, 1))
        git(place.root, "status")

        result = place.rewind()

        assert verdicts(result) == {b"x": "undone"}

    def test_what_the_user_staged_stays_staged(self, place):
        place.tell(TURN)
        place.call(x="a")
        place.write("u", "user")
        git(place.root, "add", "u")

        place.rewind()

        assert git(place.root, "diff", "--cached", "--name-only") == "u\n"

    def test_an_index_that_the_user_alone_wrote_stays_where_the_repository_goes_back(self, place):
        place.tell(TURN)
        place.tell(PRE, "a", "k")
        git(place.root, "branch", "feature")
        place.tell(POST, "a", "k")
        git(place.root, "rm", "-q", "--cached", "x")

        result = place.rewind()

        assert verdicts(result) == {b".git": "undone"}
        assert git(place.root, "branch") == "* main\n"
        assert git(place.root, "diff", "--cached", "--name-status") == "D\tx\n"

    def test_a_commit_in_another_working_tree_is_not_undone(self, place):
        git(place.root, "worktree", "add", "-q", "trees/feature")
        place.tell(TURN)
        place.tell(PRE, "a", "k")
        place.write("x", "a")
        (place.root / "trees/feature/y").write_text("b")
        self.commit(place.root / "trees/feature", "feature")
        place.tell(POST, "a", "k")

        result = place.rewind()

        assert git(place.root / "trees/feature", "log", "-1", "--format=%s") == "feature\n"
        assert verdicts(result)[b".git"] == "shared"
        assert (place.root / "x").read_text() == "0"


class TestWorkingTrees:
    @pytest.fixture
    def trees(self, tmp_path):
        main = tmp_path / "main"
        main.mkdir()
        git(main, "init", "-q")
        git(main, "commit", "-q", "--allow-empty", "-m", "begin")
        git(main, "worktree", "add", "-q", "trees/inside")
        git(main, "worktree", "add", "-q", "../outside")
        return main, main / "trees/inside", tmp_path / "outside"

    def test_it_is_a_root_of_its_own_wherever_it_lies(self, trees, tmp_path):
        main, inside, outside = trees
        store = str(tmp_path / "store")
        record(context_at(main, store), Event("claude", TURN, str(main), "s"))

        (inside / "deep").mkdir()
        assert [find_root(str(each), store) for each in (main, inside / "deep", outside)] == [
            *map(str, trees)
        ]
        assert [is_worktree(str(each)) for each in trees] == [False, True, True]

    def test_a_submodule_is_none(self, trees):
        main, _, _ = trees
        git(
            main,
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "add",
            str(main),
            "sub",
        )

        assert not is_worktree(str(main / "sub"))

    @pytest.mark.parametrize(
        "content", ["", "gitdir:", "gitdir: /nowhere", "gitdir: \0", "x" * 9999]
    )
    def test_another_file_of_that_name_is_none(self, tmp_path, content):
        (tmp_path / ".git").write_text(content)

        assert not is_worktree(str(tmp_path))

    def test_a_pipe_of_that_name_is_none(self, tmp_path):
        os.mkfifo(tmp_path / ".git")

        assert not is_worktree(str(tmp_path))

    def test_an_event_belongs_to_the_tree_that_the_agent_is_in(self, trees):
        main, inside, outside = trees

        def root_of(directory: Path | None) -> str:
            where = None if directory is None else str(directory)
            event = Event("claude", PRE, str(main), "s", directory=where)
            return in_its_worktree(event).root

        assert root_of(None) == root_of(main) == root_of(main.parent) == str(main)
        assert root_of(inside) == str(inside)
        assert root_of(outside) == str(outside)
