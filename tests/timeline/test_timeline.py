"""``snap timeline`` on a terminal of 80 x 24, with the keys that a person presses."""

from __future__ import annotations

import asyncio
from functools import wraps

import pytest

from state import tree_state
from timeline.conftest import settled
from treesnap.timeline.history import PAGE_LENGTH

pytestmark = pytest.mark.sampled(12)


def in_loop(test):
    """Runs a coroutine as a test."""

    @wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


async def press(app, pilot, *keys: str) -> None:
    """Presses keys, and waits for what follows from each."""
    for key in keys:
        await pilot.press(key)
        await settled(app, pilot)


def lines_of(app, identity: str) -> list[str]:
    """Returns what a pane shows."""
    pane = app.query_one(f"#{identity}")
    return [
        pane.render_line(y).text.rstrip()
        for y in range(min(pane.count, pane.scrollable_content_region.height))
    ]


def shown(app) -> str:
    """Returns the notifications that are on the screen."""
    return "\n".join(f"{item.title} {item.message}" for item in app._notifications)


@in_loop
async def test_it_opens_at_the_newest_snapshot_with_what_it_changed(running, history):
    async with running() as (app, _):
        rows = lines_of(app, "history")

        assert "cleaned up" in rows[0]
        assert [
            name in row for name, row in zip(("end of", "Write", "Edit"), rows[1:4], strict=True)
        ] == [True] * 3
        assert "● make it two" in rows[4]
        assert "(s1)" in rows[1]
        assert lines_of(app, "paths") == ["D notes.txt"]
        assert "-first" in lines_of(app, "patch")


@in_loop
async def test_a_step_shows_what_it_did_after_its_snapshot(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "j", "j")
        assert lines_of(app, "paths") == ["A added.txt"]
        await press(app, pilot, "down")
        assert lines_of(app, "paths") == ["M src/main.py"]
        assert "+    return 2" in lines_of(app, "patch")
        await press(app, pilot, "j")
        assert lines_of(app, "paths") == ["A added.txt", "M src/main.py"]  # the whole prompt


@in_loop
async def test_the_oldest_snapshot_has_everything_new(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "G")

        assert [line[:1] for line in lines_of(app, "paths")] == ["A"] * 3


@in_loop
async def test_enter_goes_to_the_paths_and_shows_the_file(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "G", "enter", "G", "enter")
        assert lines_of(app, "patch") == ["def main():", "    return 1"]
        await press(app, pilot, "enter")
        assert "+def main():" in lines_of(app, "patch")


@in_loop
async def test_a_restore_shows_its_plan_and_cancel_is_the_default(running, history, root):
    before = tree_state(root)
    async with running() as (app, pilot):
        await press(app, pilot, "G", "r")
        plan = str(app.screen.query_one("#plan").render())
        assert "2 put back" in plan or "1 put back" in plan
        assert "create   notes.txt" in plan
        assert app.focused.id == "cancel"

        await press(app, pilot, "enter")

        assert len(app.screen_stack) == 1
        assert tree_state(root) == before


@in_loop
async def test_a_long_plan_leaves_the_buttons_on_the_screen(running, history, handle, root):
    for number in range(20):
        (root / f"path {number}").write_text("new")
    handle.create(label="very long " * 20)
    (root / "path 0").unlink()
    async with running() as (app, pilot):
        for keys in ("r", ("j", "r")):
            await press(app, pilot, *keys)
            dialog = app.screen.query_one("#dialog").content_region
            assert dialog.contains_region(app.focused.region)
            await press(app, pilot, "escape")


@in_loop
async def test_a_confirmed_restore_says_how_to_undo_it_and_u_undoes_it(running, history, root):
    before = tree_state(root)
    async with running() as (app, pilot):
        await press(app, pilot, "G", "r", "right", "enter")
        assert not (root / "added.txt").exists()
        assert (root / "notes.txt").read_text() == "first\n"
        assert "u undoes it" in shown(app)

        await press(app, pilot, "u")
        assert app.focused.id == "cancel"
        await press(app, pilot, "right", "enter")
        assert tree_state(root) == before

        await press(app, pilot, "U", "right", "enter")
        assert (root / "notes.txt").exists()


@in_loop
async def test_a_restore_of_a_path_leaves_the_others(running, history, root):
    async with running() as (app, pilot):
        await press(app, pilot, "j", "j", "j", "p")
        assert "in src/main.py" in str(app.screen.query_one("#plan").render())
        await press(app, pilot, "right", "enter")

    assert (root / "src/main.py").read_text() == "def main():\n    return 1\n"
    assert (root / "added.txt").exists()
    assert not (root / "notes.txt").exists()


@pytest.fixture
def edited(handle, root):
    """The id of a snapshot, since which three places of a file changed."""
    lines = [f"line {number}\n" for number in range(40)]
    (root / "text").write_text("".join(lines))
    (root / "other").write_text("other")
    before = handle.create(label="before").id
    lines[2], lines[20:22] = "two\n", []
    (root / "text").write_text("".join(lines) + "more\n")
    handle.create(label="edited")
    return before


@in_loop
async def test_h_shows_hunks_to_mark_and_enter_restores_them(running, edited, handle, root):
    before = (root / "text").read_text()
    async with running() as (app, pilot):
        await press(app, pilot, "h")
        assert lines_of(app, "patch")[0] == "[ ] hunk 1 of 3, line 3: +1 -1"
        assert lines_of(app, "patch")[4:6] == ["+line 2", " line 3"]
        assert f"text as in {edited[:12]}" in str(app.query_one("#about-patch").render())
        assert app.focused.id == "patch"

        await press(app, pilot, "m", "n", "n", "b", "m")
        assert "2 marked" in str(app.query_one("#about-patch").render())
        assert "[x] hunk 2 of 3, line 21: +2 -0" in lines_of(app, "patch")
        await press(app, pilot, "enter")
        plan = str(app.screen.query_one("#plan").render())
        assert "in text:" in plan
        assert "2 of 3 hunks, 3 lines added, 1 removed" in plan
        assert "u undoes it" in plan
        assert app.focused.id == "cancel"
        assert app.focused.region.bottom < 24

        await press(app, pilot, "enter")
        assert (root / "text").read_text() == before
        await press(app, pilot, "enter", "right", "enter")
        assert (root / "text").read_text() == "".join(f"line {n}\n" for n in range(40)) + "more\n"
        assert (root / "other").read_text() == "other"

        await press(app, pilot, "u", "right", "enter")
        assert (root / "text").read_text() == before


@in_loop
async def test_h_again_shows_the_changes(running, edited):
    async with running() as (app, pilot):
        changes = lines_of(app, "patch")
        await press(app, pilot, "h", "h")
        assert lines_of(app, "patch") == changes
        await press(app, pilot, "m", "n", "enter")
        assert lines_of(app, "patch") == changes
        assert len(app.screen_stack) == 1


@in_loop
async def test_without_a_mark_nothing_is_asked(running, edited):
    async with running() as (app, pilot):
        await press(app, pilot, "h", "m", "m", "enter")

        assert len(app.screen_stack) == 1
        assert "Mark hunks" in shown(app)


@in_loop
async def test_a_file_that_changed_meanwhile_is_not_restored(running, edited, root):
    async with running() as (app, pilot):
        await press(app, pilot, "h", "m", "enter")
        (root / "text").write_text("meanwhile")
        await press(app, pilot, "right", "enter")

        assert "changed since its hunks were listed" in shown(app)
        assert (root / "text").read_text() == "meanwhile"


@in_loop
async def test_marks_stay_while_others_take_snapshots(running, edited, handle, root):
    async with running() as (app, pilot):
        await press(app, pilot, "h", "m")
        (root / "other").write_text("changed")
        handle.create(label="meanwhile")
        app.poll()
        await settled(app, pilot)

        assert "meanwhile" in lines_of(app, "history")[0]
        assert lines_of(app, "patch")[0].startswith("[x] hunk 1")
        assert app.query_one("#history").selected == 1


@in_loop
async def test_of_very_many_hunks_those_that_are_shown_can_be_marked(running, handle, root):
    lines = [f"{number}\n" for number in range(6000)]
    (root / "text").write_text("".join(lines))
    handle.create(label="before")
    lines[::2] = ["x\n"] * 3000
    (root / "text").write_text("".join(lines))
    handle.create(label="edited")
    async with running() as (app, pilot):
        await press(app, pilot, "h", *"bnnbm")
        app.action_move_hunk(10_000)
        app.action_mark_hunk()

        assert "only the first" in app.patch[-1].plain
        assert len(app.hunks.marked) == 2
        assert max(app.hunks.marked) < 2000
        assert "2 of 3,000 hunks" in app.hunks.plan()[1]


@in_loop
async def test_what_has_no_hunks_says_so_and_the_pane_stays(running, handle, root, edited):
    (root / "binary").write_bytes(b"\0")
    (root / "added").write_text("added\n")
    handle.create(label="more")
    async with running() as (app, pilot):
        await press(app, pilot, "h")
        assert "No line differs now" in shown(app)
        changes = lines_of(app, "patch")
        assert "+added" in changes

        await press(app, pilot, "enter", "j", "h")
        assert "is not a text" in shown(app)
        assert app.hunks is None
        (root / "added").unlink()
        await press(app, pilot, "k", "h")
        assert "The tree does not hold 'added'" in shown(app)


@in_loop
async def test_all_keys_fit_into_the_lowest_line(running, history):
    async with running() as (app, _):
        keys = list(app.query("FooterKey"))
        described = [key.description for key in keys]

        assert "Hunks" in described
        assert "Steps" in described
        assert max(key.region.right for key in keys) <= app.size.width


@in_loop
async def test_a_question_mark_lists_every_key_and_any_key_goes_back(running, history, root):
    async with running() as (app, pilot):
        await press(app, pilot, "question_mark")
        (text,) = app.screen.query("#keys Static")
        listed = str(text.content)
        is_on_screen = text.region.bottom <= app.size.height
        await press(app, pilot, "r")  # in the list it restores nothing
        is_back = app.screen is app.screen_stack[0]

    assert is_on_screen
    assert is_back
    for binding in app.BINDINGS:
        assert binding.tooltip in listed
        assert app.get_key_display(binding) in listed
    assert not (root / "notes.txt").exists()


@in_loop
async def test_what_arrives_behind_a_dialog_leaves_its_plan(running, history, handle, root):
    async with running() as (app, pilot):
        await press(app, pilot, "G", "r")
        handle.create(label="meanwhile")
        app.poll()
        await settled(app, pilot)

        assert len(app.history) == len(history) + 1
        assert app.focused.id == "cancel"
        await press(app, pilot, "right", "enter")

    assert (root / "notes.txt").exists()


@in_loop
async def test_nothing_to_restore_asks_nothing(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "r")

        assert len(app.screen_stack) == 1
        assert "Nothing to do" in shown(app)


@in_loop
async def test_an_error_is_shown_and_nothing_ends(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "u")

        assert "nothing to undo" in shown(app)
        assert app.is_running


@in_loop
async def test_i_pins_and_unpins(running, history, handle):
    async with running() as (app, pilot):
        await press(app, pilot, "i")
        assert handle.resolve("latest").pinned
        assert "*" in lines_of(app, "history")[0]
        await press(app, pilot, "i")
        assert not handle.resolve("latest").pinned


@in_loop
async def test_l_gives_a_label_and_escape_leaves_it(running, history, handle):
    async with running() as (app, pilot):
        await press(app, pilot, "l", *"!?", "escape")
        assert handle.resolve("latest").label == "cleaned up"
        await press(app, pilot, "l", "end", *"!", "enter")
        assert handle.resolve("latest").label == "cleaned up!"
        assert "cleaned up!" in lines_of(app, "history")[0]
        await press(app, pilot, "l", "ctrl+u", "enter")
        assert handle.resolve("latest").label is None


@in_loop
async def test_search_goes_to_the_next_row_that_fits(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "slash", *"edit", "enter")
        assert app.query_one("#history").selected == 3
        await press(app, pilot, "N")
        assert app.query_one("#history").selected == 3
        assert "in no row below" in shown(app)


@in_loop
async def test_w_lists_the_snapshots_that_changed_a_file_and_goes_there(running, history):
    async with running() as (app, pilot):
        await press(app, pilot, "j", "j", "j", "w")
        assert [line.plain[:1] for line in app.screen.lines] == ["M", "A"]
        await press(app, pilot, "G", "enter")
        row = app.history.row(app.query_one("#history").selected)

        assert row.name.id == history["hand"]


@in_loop
async def test_new_snapshots_appear_and_the_selected_one_stays(running, history, handle, root):
    async with running() as (app, pilot):
        await press(app, pilot, "j")
        (root / "more").write_text("more")
        handle.create(label="meanwhile")
        app.poll()
        await settled(app, pilot)

        assert "meanwhile" in lines_of(app, "history")[0]
        assert app.history.names[app.query_one("#history").selected].id == history["end"]

        await press(app, pilot, "g")
        handle.create(label="followed")
        app.poll()
        await settled(app, pilot)
        assert app.query_one("#history").selected == 0


@in_loop
async def test_a_poll_without_news_lists_nothing(running, history, monkeypatch):
    async with running() as (app, pilot):
        app.poll()  # once more after a change
        await settled(app, pilot)
        names = app.history.names
        app.poll()
        await settled(app, pilot)

        assert app.history.names is names


@in_loop
async def test_an_empty_history_says_so(running):
    async with running() as (app, pilot):
        assert "Nothing was captured" in str(app.query_one("#about").render())
        await press(app, pilot, "r", "p", "i", "w", "j", "enter")
        assert app.is_running


@in_loop
async def test_hostile_names_stay_on_their_line(running, root, handle):
    (root / "a\nb[red]\x1b[31m").write_text("\x1b[2J text\r\n")
    handle.create(label="[bold]label\x1b[0m")
    async with running() as (app, _):
        assert "[bold]label\\x1b[0m" in lines_of(app, "history")[0]
        assert "A a\\nb[red]\\x1b[31m" in lines_of(app, "paths")
        assert "\x1b" not in "".join(lines_of(app, "patch"))


@in_loop
async def test_q_ends_it(running, history):
    async with running() as (app, pilot):
        await pilot.press("q")
        await pilot.pause()

        assert not app.is_running


@in_loop
async def test_only_records_near_the_screen_are_read(running, root, handle):
    count = 2 * PAGE_LENGTH + 16
    for number in range(count):
        handle.create(label=f"number {number}")
    async with running() as (app, pilot):
        assert len(app.history) == count
        assert app.history.records_read == PAGE_LENGTH
        await press(app, pilot, "j", "pagedown", "k")
        assert app.history.records_read == PAGE_LENGTH
        await press(app, pilot, "G")
        assert app.history.records_read == PAGE_LENGTH + 16
        assert app.query_one("#history").lines_drawn < count
