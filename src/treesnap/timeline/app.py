"""``snap timeline``: history, changed paths and their differences on a terminal.

The thread that draws reads nothing but the records of the rows on the screen. Whatever looks at
trees or files runs in a worker thread, which sends messages. A worker whose question is no longer
asked is cancelled: it stops at its next look, and what it still sends is dropped, because each
message says which question it answers.

Nothing changes the root but :meth:`Timeline._carry_out`, which a dialog with the plan precedes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Footer, Static
from textual.worker import Worker, get_current_worker

from treesnap.core.model.entries import ChangeKind
from treesnap.core.model.errors import NotFound, TreesnapError, WarningCode, printable
from treesnap.core.model.events import NullMonitor
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, time_text
from treesnap.timeline.dialogs import Choice, Confirmation, KeyList, LabelPrompt, SearchPrompt
from treesnap.timeline.history import (
    LETTERS,
    SHORT_ID,
    ComparedStates,
    History,
    HistoryRow,
    added_text,
    title_of,
)
from treesnap.timeline.hunk_choice import HunkChoice
from treesnap.timeline.line_list import LineList
from treesnap.timeline.patch_text import content_lines, patch_lines

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.model.entries import Change
    from treesnap.core.model.events import Monitor
    from treesnap.core.model.results import FileHunks, RestoreResult
    from treesnap.core.model.snapshots import Snapshot
    from treesnap.core.store.snapshots import SnapshotName

POLL_INTERVAL_S = 1.0
FIRST_BATCH = 200
"""Changed paths that are shown before the others are read."""
BATCH = 20_000
PLAN_PATHS_MAX = 4
"""Paths that a dialog names; the others are counted. With more the buttons leave 24 rows."""
PREVIEW_SIZE_MAX = 1024 * 1024

_STYLES = {"A": "green", "D": "red", "M": "yellow", "T": "magenta", "P": "blue"}

Patches = Callable[["Handle", str, str | None, Sequence["Change"]], Iterator[bytes]]
"""Returns changes as unified diffs."""
Describe = Callable[[BaseException], str]
"""Returns an error and its hint in one text."""


class TimelineTools(NamedTuple):
    """What the command line has and the timeline uses."""

    patches: Patches
    describe: Describe


class RestoreQuestion(NamedTuple):
    """A restore to ask about: its dry run, and what carries it out."""

    verb: str
    dry_run: RestoreResult
    carry_out: Callable[[], RestoreResult]


class ChangesRead(Message):
    """Some more changed paths of a row are known."""

    def __init__(self, sides: ComparedStates, lines: list[bytes], *, done: bool) -> None:
        super().__init__()
        self.sides: ComparedStates = sides
        self.lines: list[bytes] = lines
        self.done: bool = done


class PatchRead(Message):
    """The lines of the lowest pane are known."""

    def __init__(self, question: object, lines: list[Text]) -> None:
        super().__init__()
        self.question: object = question
        self.lines: list[Text] = lines


class HunksRead(Message):
    """It is known where a live file differs from a snapshot."""

    def __init__(self, question: object, choice: HunkChoice) -> None:
        super().__init__()
        self.question: object = question
        self.choice: HunkChoice = choice


class NamesRead(Message):
    """The history was read anew."""

    def __init__(self, mark: str, names: tuple[SnapshotName, ...]) -> None:
        super().__init__()
        self.mark: str = mark
        self.names: tuple[SnapshotName, ...] = names


class Planned(Message):
    """It is known what a restore would do."""

    def __init__(self, plan: RestoreQuestion) -> None:
        super().__init__()
        self.plan = plan


class RestoreEnded(Message):
    """A restore is done."""

    def __init__(self, verb: str, result: RestoreResult) -> None:
        super().__init__()
        self.verb: str = verb
        self.result: RestoreResult = result


class Redescribed(Message):
    """A snapshot was pinned or unpinned, or has another label."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class Found(Message):
    """A search came to a row, or to the end (None)."""

    def __init__(self, index: int | None) -> None:
        super().__init__()
        self.index = index


class StepsFound(Message):
    """Some snapshots that changed a path are known."""

    def __init__(self, screen: Choice, found: list[tuple[Snapshot, str]]) -> None:
        super().__init__()
        self.screen: Choice = screen
        self.found: list[tuple[Snapshot, str]] = found


class Notice(Message):
    """Something to tell the person."""

    def __init__(self, text: str, severity: str = "information") -> None:
        super().__init__()
        self.text: str = text
        self.severity: str = severity


class _Warnings(NullMonitor):
    """Shows the warnings of the library on the screen."""

    def __init__(self) -> None:
        self.tell: Callable[[Notice], object] = lambda _: None

    def warn(self, code: WarningCode, message: str) -> None:  # noqa: ARG002 - a person reads it
        """Shows the warning."""
        self.tell(Notice(printable(message), "warning"))


def _key(
    key: str, action: str, shown: str, meaning: str, *, key_display: str | None = None
) -> Binding:
    """Returns a key with what the list of keys says of it, and the lowest line if there is room."""
    return Binding(key, action, shown, show=bool(shown), key_display=key_display, tooltip=meaning)


class Timeline(App[None]):
    """The history of one root to look through and to go back in."""

    ENABLE_COMMAND_PALETTE: ClassVar[bool] = False
    CSS: ClassVar[str] = """
    #place { height: 1; background: $primary; color: $text; padding: 0 1; }
    #upper { height: 45%; }
    #history { width: 58%; border: none; }
    #right { width: 42%; border-left: solid $primary; }
    #about, #about-patch { height: 1; background: $panel; padding: 0 1; }
    #patch { height: 1fr; }
    LineList { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    ModalScreen { align: center middle; }
    #dialog { width: 72; max-width: 95%; height: auto; max-height: 95%; padding: 1 2;
              border: thick $warning; background: $surface; }
    #plan { height: auto; max-height: 12; margin: 1 0; }
    #answers { height: auto; align: right middle; }
    #answers Button { margin-left: 2; }
    #prompt { width: 100%; height: 3; dock: bottom; }
    #keys { width: auto; max-width: 100%; height: auto; max-height: 100%; padding: 0 1;
            border: thick $primary; background: $surface; }
    #choice { width: 90%; height: 80%; border: thick $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("question_mark", "help", "Help", "show this list", key_display="?"),
        _key("q", "quit", "Quit", "quit"),
        _key("tab", "app.focus_next", "", "go to the next pane"),
        _key("r", "restore", "Restore", "restore the whole snapshot"),
        _key("p", "restore_path", "Path", "restore only the selected path"),
        _key(
            "h",
            "hunks",
            "Hunks",
            "show the hunks of the path, in which it differs now; again: back",
        ),
        _key("n", "move_hunk(1)", "", "among hunks: to the next one"),
        _key("b", "move_hunk(-1)", "", "among hunks: to the one before"),
        _key("m", "mark_hunk", "", "among hunks: mark it or not; Enter restores the marked ones"),
        _key("u", "undo", "Undo", "undo the newest restore"),
        _key("U", "redo", "Redo", "redo it"),
        _key("i", "pin", "Pin", "pin the snapshot, or unpin it"),
        _key("l", "label", "", "give the snapshot another label"),
        _key(
            "slash", "search", "Search", "search downwards in what names snapshots", key_display="/"
        ),
        _key("N", "search_on", "", "search on"),
        _key("w", "who", "Steps", "list the snapshots in which the path changed"),
        _key("escape", "leave", "", "back to the history"),
    ]

    def __init__(self, open_handle: Callable[[Monitor], Handle], tools: TimelineTools) -> None:
        super().__init__()
        self._warnings = _Warnings()
        self._tools = tools
        self.handle: Handle = open_handle(self._warnings)
        self.history: History = History(self.handle)
        self.sides: ComparedStates | None = None
        """What the changed paths are about."""
        self.paths: list[bytes] = []
        """Changed paths of the selected row, each after the letter of its change."""
        self.patch: list[Text] = []
        self.hunks: HunkChoice | None = None
        """What can be marked in the lowest pane, if it shows hunks."""
        self._question: object = None
        """What the lowest pane is about."""
        self._mark: str | None = None
        self._reads_once_more = False
        self._searched = ""
        # Found by name, they would be looked for on the dialog that is in front of them.
        self._place = Static("", id="place")
        self._rows = LineList(self._draw_row, identity="history")
        self._about = Static("", id="about")
        self._paths_list = LineList(self._draw_path, identity="paths")
        self._about_patch = Static("", id="about-patch")
        self._patch_list = LineList(self._draw_patch, identity="patch", selects=False, width=1000)

    def compose(self) -> ComposeResult:
        """Yields the three panes."""
        yield self._place
        with Horizontal(id="upper"):
            yield self._rows
            with Vertical(id="right"):
                yield self._about
                yield self._paths_list
        yield self._about_patch
        yield self._patch_list
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Reads the names, and looks for new ones from then on."""
        self._warnings.tell = self.post_message
        self._rows.focus()
        self.poll()
        self.set_interval(POLL_INTERVAL_S, self.poll)

    # ------------------------------------------------------------------ what is new

    def poll(self) -> None:
        """Reads the names anew if a snapshot was published or deleted since."""
        if not any(worker.group == "names" and worker.is_running for worker in self.workers):
            self._work("names", self._read_names)

    def _read_names(self) -> None:
        mark = self.handle.history_mark()
        is_new = mark != self._mark
        if is_new or self._reads_once_more:  # two changes in one tick have one mark
            self._reads_once_more = is_new
            self.post_message(NamesRead(mark, self.handle.snapshot_names()))

    def on_names_read(self, message: NamesRead) -> None:
        """Shows the new rows; stays at the newest, or at the snapshot that was selected.

        Hunks stay on the screen, with their marks.
        """
        lines, is_first = self._rows, self._mark is None
        self._mark = message.mark
        if message.names == self.history.names and not is_first:
            return
        chosen = self.history.names[lines.selected].id if self.history.names else None
        follows = lines.selected == 0 and self.hunks is None
        self.history.take(message.names)
        place = self.history.place_of(chosen) if chosen is not None and not follows else 0
        lines.show(len(self.history), place if place is not None else lines.selected)
        self._show_place()
        if self.hunks is None or place is None:
            self._row_selected()

    def _show_place(self) -> None:
        count = count_text(len(self.history), "snapshot")
        place = Text.assemble((printable(self.handle.root), "bold"), f"  {count}")
        self._place.update(place)

    # ------------------------------------------------------------------ the panes

    def _draw_row(self, index: int, width: int) -> Text:
        row = self.history.row(index)
        text = Text(no_wrap=True)
        if row.snapshot is None:
            return text.append(f"{row.name.id[:SHORT_ID]} {row.title}", "red")
        day = _day(row)
        is_new_day = index == 0 or _day(self.history.row(index - 1)) != day
        text.append(f"{day if is_new_day else '':5} ", "dim")
        text.append(time_text(row.snapshot.record.created_at_ns, "%H:%M "), "cyan")
        flag = "*" if row.snapshot.pinned else "!" if not row.snapshot.complete else " "
        text.append(flag, "bold yellow")
        if row.session is not None:
            text.append("● " if row.is_prompt else "├ ", "magenta")
        text.append(row.title, "bold" if row.is_prompt or row.step is None else "")
        if self.history.begins_session(index) and row.session is not None:
            text.append(f" ({printable(row.session)})", "magenta")
        added = added_text(row.snapshot)
        if added and width - text.cell_len > len(added):
            text.append(f" {added}", "dim")
        text.truncate(width, overflow="ellipsis")
        return text

    def _draw_path(self, index: int, _width: int) -> Text:
        letter, path = chr(self.paths[index][0]), self.paths[index][1:]
        return Text.assemble((f"{letter} ", _STYLES[letter]), printable(path) or ".", no_wrap=True)

    def _draw_patch(self, index: int, _width: int) -> Text:
        return self.patch[index].copy()

    def on_line_list_moved(self, message: LineList.Moved) -> None:
        """Shows what belongs to the line."""
        if message.lines.id == "history":
            self._row_selected()
        elif message.lines.id == "paths":
            self._path_selected()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        """Goes on to the next pane; from a path to its content."""
        if message.lines.id == "history":
            self._paths_list.focus()
        elif message.lines.id == "paths":
            self._preview()
        elif self.hunks is not None:
            self._ask_to_restore_hunks(self.hunks)

    def _row_selected(self) -> None:
        index = self._rows.selected
        self.paths, self.sides = [], None
        self._paths_list.show(0, 0)
        self._show_patch(None, [])
        if not self.history.names:
            self._about.update("Nothing was captured yet")
            return
        sides = self.sides = self.history.sides(index)
        self._about.update("reading ...")
        self._work("changes", partial(self._read_changes, sides))

    def _read_changes(self, sides: ComparedStates) -> None:
        worker, batch, size = get_current_worker(), list[bytes](), FIRST_BATCH
        for change in sides.changes(self.handle) if not worker.is_cancelled else ():
            if worker.is_cancelled:
                return
            batch.append(LETTERS[change.change].encode() + change.path)
            if len(batch) == size:
                self.post_message(ChangesRead(sides, batch, done=False))
                batch, size = [], BATCH
        self.post_message(ChangesRead(sides, batch, done=True))

    def on_changes_read(self, message: ChangesRead) -> None:
        """Adds the paths to their pane."""
        if message.sides != self.sides:
            return
        is_first = not self.paths
        self.paths += message.lines
        self._paths_list.show(len(self.paths))
        what = count_text(len(self.paths), "path")
        since = "until now" if message.sides.new_id is None else ""
        about = f"{what} {since}" if message.done else f"{what}, reading ..."
        self._about.update(Text(about))
        if is_first and self.paths:
            self._path_selected()

    def _path_selected(self) -> None:
        path = self._selected_path()
        if path is not None and self.sides is not None:
            self._ask_patch(("patch", self.sides, path), partial(self._patch_of, self.sides, path))

    def _patch_of(self, sides: ComparedStates, path: bytes) -> list[Text]:
        change = sides.change_at(self.handle, path)
        patch = self._tools.patches(self.handle, sides.old_id or "", sides.new_id, [change])
        return patch_lines(patch, path)

    def _preview(self) -> None:
        """Shows the whole file as it is in the selected snapshot, or the patch again."""
        row, path = self._selected_row(), self._selected_path()
        if row is None or path is None:
            return
        question = ("file", row.name.id, path)
        if self._question == question:
            self._path_selected()
        else:
            self._ask_patch(question, partial(self._content_of, row.name.id, path))

    def _content_of(self, identity: str, path: bytes) -> list[Text]:
        pieces, size = [], 0
        for piece in self.handle.cat(identity, path):
            pieces.append(piece)
            size += len(piece)
            if size > PREVIEW_SIZE_MAX:
                break
        return content_lines(b"".join(pieces), path)

    def _ask_patch(self, question: object, answer: Callable[[], list[Text]]) -> None:
        self._show_patch(question, [])

        def read() -> None:
            if get_current_worker().is_cancelled:
                return
            try:
                lines = answer()
            except TreesnapError as error:
                lines = [Text(self._tools.describe(error), "italic")]
            self.post_message(PatchRead(question, lines))

        self._work("patch", read)

    def on_patch_read(self, message: PatchRead) -> None:
        """Shows the lines, if they are still asked for."""
        if message.question == self._question:
            self._show_patch(message.question, message.lines)

    def _show_patch(
        self, question: object, lines: list[Text], hunks: HunkChoice | None = None
    ) -> None:
        self._question, self.patch, self.hunks = question, lines, hunks
        self._patch_list.show(len(lines), 0)
        self._patch_list.scroll_to(0, 0, animate=False, immediate=True)
        self._show_about_patch()

    def _show_about_patch(self) -> None:
        question = self._question
        row, path = self._selected_row(), self._selected_path()
        about = Text(no_wrap=True)
        if row is not None:
            about.append(f"{row.name.id[:SHORT_ID]} {row.title}  ", "dim")
        if path is not None and question is not None:
            form = " (Enter: the file)" if isinstance(question, tuple) else ""
            if isinstance(question, tuple) and question[0] == "file":
                form = " as it was (Enter: the changes)"
            if self.hunks is not None:
                keys = "n, b: go; m: mark; Enter: restore"
                about = Text(f"{len(self.hunks.marked)} marked ({keys})  ", "dim", no_wrap=True)
                form = f" as in {self.hunks.found.snapshot.id[:SHORT_ID]}"
            about.append((printable(path) or ".") + form, "bold")
        self._about_patch.update(about)

    # ------------------------------------------------------------------ going back

    def action_restore(self) -> None:
        """Asks whether to restore the selected snapshot whole."""
        row = self._selected_row()
        if row is not None:
            self._plan("Restore", partial(self.handle.restore, row.name.id))

    def action_restore_path(self) -> None:
        """Asks whether to restore the selected path."""
        row, path = self._selected_row(), self._selected_path()
        if row is None or path is None:
            self.notify("Select a changed path first", severity="warning")
            return
        paths = [path or b"."]
        self._plan("Restore", partial(self.handle.restore, row.name.id, paths))

    def action_hunks(self) -> None:
        """Shows where the selected path differs from a snapshot now, or the changes again.

        That is the selected snapshot, or if no line differs, the one that it is compared with.
        """
        row, path, sides = self._selected_row(), self._selected_path(), self.sides
        if row is None or path is None or sides is None:
            self.notify("Select a changed path first", severity="warning")
        elif self.hunks is not None:
            self._path_selected()
        else:
            question = (sides, path)
            refs = dict.fromkeys([row.name.id, sides.old_id or row.name.id])
            find = partial(self._find_hunks, list(refs), path)
            self._work("hunks", lambda: self.post_message(HunksRead(question, HunkChoice(find()))))

    def _find_hunks(self, refs: Sequence[str], path: bytes) -> FileHunks:
        first, *others = refs
        file = self.handle.hunks(first, path or b".")
        for ref in others if not file.hunks else ():
            with suppress(NotFound):  # it was added since
                return self.handle.hunks(ref, path)
        return file

    def on_hunks_read(self, message: HunksRead) -> None:
        """Shows the hunks, if they are still asked for."""
        choice = message.choice
        if message.question != (self.sides, self._selected_path()):
            return
        if not choice.found.hunks:
            self.notify("No line differs now")
            return
        self._show_patch(("hunks", *choice.found[:2]), choice.lines, choice)
        self._patch_list.focus()

    def action_move_hunk(self, hunks: int) -> None:
        """Goes to another hunk, if hunks are shown."""
        if self.hunks is not None:
            self.hunks.move(hunks)
            self._patch_list.scroll_to(y=self.hunks.line, animate=False, immediate=True)
            self._patch_list.refresh()

    def action_mark_hunk(self) -> None:
        """Marks the current hunk to be restored, or not any more."""
        if self.hunks is not None:
            self.hunks.mark()
            self._patch_list.refresh()
            self._show_about_patch()

    def _ask_to_restore_hunks(self, choice: HunkChoice) -> None:
        """Shows what would become of the file and asks; Cancel is the default."""
        if not choice.marked:
            self.notify("Mark hunks to restore with m first", severity="warning")
            return
        numbers = sorted(choice.marked)
        restore = partial(self.handle.restore_hunks, choice.found, numbers)

        def answered(is_confirmed: bool | None) -> None:  # noqa: FBT001 - Textual passes it so
            if is_confirmed:
                ended = partial(RestoreEnded, "Restore")
                self._work("restore", lambda: self.post_message(ended(restore())))

        identity = choice.found.snapshot.id[:SHORT_ID]
        title = f"Restore {count_text(len(numbers), 'hunk')} of {identity}?"
        self.push_screen(Confirmation(title, choice.plan(), "Restore"), answered)

    def action_undo(self) -> None:
        """Asks whether to undo the newest restore."""
        self._plan("Undo", self.handle.undo)

    def action_redo(self) -> None:
        """Asks whether to undo the newest undo."""
        self._plan("Redo", self.handle.redo)

    def _plan(self, verb: str, restore: Callable[..., RestoreResult]) -> None:
        def read() -> None:
            plan = RestoreQuestion(verb, restore(dry_run=True), restore)
            if not get_current_worker().is_cancelled:
                self.post_message(Planned(plan))

        self._work("plan", read)

    def on_planned(self, message: Planned) -> None:
        """Shows the plan and asks; Cancel is the default."""
        plan = message.plan
        result = plan.dry_run
        if not (result.restored or result.created or result.deleted):
            self.notify(f"Nothing to do: all is as in {result.snapshot.id[:SHORT_ID]}")
            return
        title = f"{plan.verb} to {result.snapshot.id[:SHORT_ID]}?"

        def answered(is_confirmed: bool | None) -> None:  # noqa: FBT001 - Textual passes it so
            if is_confirmed:
                self._work("restore", partial(self._carry_out, plan))

        self.push_screen(Confirmation(title, plan_lines(result), plan.verb), answered)

    def _carry_out(self, plan: RestoreQuestion) -> None:
        self.post_message(RestoreEnded(plan.verb, plan.carry_out()))

    def on_restore_ended(self, message: RestoreEnded) -> None:
        """Says what was done and how to undo it, and shows the safety snapshot."""
        result = message.result
        done = f"{result.restored} put back, {result.created} created, {result.deleted} deleted."
        back = "U does it again" if message.verb == "Undo" else "u undoes it"
        self.notify(f"{done} {back}.", title=f"{message.verb} to {result.snapshot.id[:SHORT_ID]}")
        for item in result.open_files:
            text = f"{printable(item.path)} is open in {printable(item.program)}"
            self.notify(f"{text} ({item.process_id})", severity="warning")
        if self.history.names:
            self._row_selected()
        self.poll()

    def action_pin(self) -> None:
        """Protects the selected snapshot from deletion, or ends that."""
        row = self._selected_row()
        if row is not None and row.snapshot is not None:
            change = self.handle.unpin if row.snapshot.pinned else self.handle.pin
            self._work("pin", lambda: self.post_message(Redescribed(change(row.name.id))))

    def action_label(self) -> None:
        """Asks for another label of the selected snapshot."""
        row = self._selected_row()
        if row is None or row.snapshot is None:
            return
        identity, old = row.name.id, row.snapshot.label or ""

        def answered(label: str | None) -> None:
            if label is not None and label != old:
                describe = partial(self.handle.describe, identity, label)
                self._work("label", lambda: self.post_message(Redescribed(describe())))

        self.push_screen(LabelPrompt(old), answered)

    def on_redescribed(self, message: Redescribed) -> None:
        """Shows the new state of the snapshot."""
        self.history.replace(message.snapshot)
        self._rows.refresh()

    # ------------------------------------------------------------------ looking for something

    def action_search(self) -> None:
        """Asks for a text, and goes to the next row below that has it."""

        def answered(text: str | None) -> None:
            if text:
                self._searched = text
                self.action_search_on()

        self.push_screen(SearchPrompt(self._searched), answered)

    def action_search_on(self) -> None:
        """Goes to the next row that has the text."""
        start = self._rows.selected + 1
        if self._searched:
            text, history = self._searched, History(self.handle)
            history.take(self.history.names)  # its own rows: a thread of its own reads them

            def look() -> None:
                worker = get_current_worker()
                for index in history.matches(text, start):
                    if worker.is_cancelled:
                        return
                    if index is not None:
                        self.post_message(Found(index))
                        return
                self.post_message(Found(None))

            self._work("search", look)

    def on_found(self, message: Found) -> None:
        """Selects the row."""
        if message.index is None:
            self.notify(f"{self._searched!r} is in no row below")
        else:
            self._rows.select(message.index)

    def action_who(self) -> None:
        """Shows which steps changed the selected path."""
        path = self._selected_path()
        if path is None:
            self.notify("Select a changed path first", severity="warning")
            return
        screen = Choice(f"Snapshots in which {printable(path) or '.'} differs from the one before")
        makers: list[Snapshot] = []

        def look() -> None:
            worker, batch = get_current_worker(), list[tuple[Any, str]]()
            for item in self.handle.log(path or b"."):
                if worker.is_cancelled:
                    return
                makers.append(item.snapshot)
                kind = item.change.change if item.change is not None else ChangeKind.MODIFIED
                batch.append((item.snapshot, LETTERS[kind]))
                if len(batch) >= FIRST_BATCH:
                    self.post_message(StepsFound(screen, batch))
                    batch = []
            self.post_message(StepsFound(screen, batch))

        def answered(chosen: int | None) -> None:
            self.workers.cancel_group(self, "who")
            place = self.history.place_of(makers[chosen].id) if chosen is not None else None
            if place is not None:
                self._rows.select(place)

        self.push_screen(screen, answered)
        self._work("who", look)

    def on_steps_found(self, message: StepsFound) -> None:
        """Adds them to the list, unless it was left."""
        if self.screen is message.screen:
            message.screen.add([_step_line(snapshot, kind) for snapshot, kind in message.found])

    def action_leave(self) -> None:
        """Ends a search, and goes back to the history."""
        self.workers.cancel_group(self, "search")
        self._rows.focus()

    def action_help(self) -> None:
        """Lists all keys; any key goes back."""
        own = [item for item in self.BINDINGS if isinstance(item, Binding)]
        rows = [(self.get_key_display(item), item.tooltip) for item in own]
        self.push_screen(KeyList([*LineList.KEYS, *rows]))

    # ------------------------------------------------------------------ workers

    def on_notice(self, message: Notice) -> None:
        """Shows a text for some seconds."""
        severity = message.severity
        if severity == "error":
            self.notify(message.text, severity="error", timeout=10)
        elif severity == "warning":
            self.notify(message.text, severity="warning")
        else:
            self.notify(message.text)

    def _work(self, group: str, work: Callable[[], object]) -> Worker[None]:
        """Runs something in a thread; what ran before in that group is cancelled."""

        def run() -> None:
            try:
                work()
            except (TreesnapError, OSError) as error:
                if not get_current_worker().is_cancelled:
                    self.post_message(Notice(self._tools.describe(error), "error"))

        return self.run_worker(run, group=group, exclusive=True, thread=True)

    def _selected_row(self) -> HistoryRow | None:
        return self.history.row(self._rows.selected) if self.history.names else None

    def _selected_path(self) -> bytes | None:
        return self.paths[self._paths_list.selected][1:] if self.paths else None


def plan_lines(result: RestoreResult) -> list[str]:
    """Returns what a restore would do, as a dialog says it."""
    record = result.snapshot.record
    label = f"  {printable(result.snapshot.label)}" if result.snapshot.label else ""
    scope = "the whole root" if result.scope is None else ", ".join(map(_shown, result.scope[:3]))
    lines = [
        f"of {time_text(record.created_at_ns)}{label}",
        f"in {scope}:",
        f"  {result.restored:,} put back, {result.created:,} created, {result.deleted:,} deleted",
        "",
    ]
    shown: Iterable[Change] = result.changes[:PLAN_PATHS_MAX]
    lines += [f"  {_RESTORING[LETTERS[change.change]]}{_shown(change.path)}" for change in shown]
    if len(result.changes) > PLAN_PATHS_MAX:
        lines.append(f"  and {count_text(len(result.changes) - PLAN_PATHS_MAX, 'path')} more")
    if result.conflicts:
        lines.append(f"  {count_text(len(result.conflicts), 'conflict')}")
    return [*lines, "", "The state before is kept: u undoes it."]


_RESTORING = {
    "A": "create   ",
    "D": "delete   ",
    "M": "put back ",
    "T": "put back ",
    "P": "put back ",
}


def _shown(path: bytes) -> str:
    return printable(path) or "."


def _day(row: HistoryRow) -> str:
    return time_text(row.snapshot.record.created_at_ns, "%m-%d") if row.snapshot else ""


def _step_line(snapshot: Snapshot, letter: str) -> Text:
    when = time_text(snapshot.record.created_at_ns, "%Y-%m-%d %H:%M")
    what = f" {snapshot.id[:SHORT_ID]} {title_of(snapshot)}"
    return Text.assemble((f"{letter} ", _STYLES[letter]), (when, "cyan"), what)
