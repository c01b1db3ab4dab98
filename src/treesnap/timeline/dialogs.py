"""Questions in front of the timeline. None of them changes anything by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from treesnap.timeline.line_list import LineList


class Confirmation(ModalScreen[bool]):
    """Shows a plan and asks whether to carry it out; Cancel is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,n", "answer(False)", "Cancel"),
        Binding("left,h", "app.focus_previous", show=False),
        Binding("right,l", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[str], verb: str) -> None:
        super().__init__()
        self._title, self._lines, self._verb = title, lines, verb

    def compose(self) -> ComposeResult:
        """Yields the plan and two buttons."""
        with Vertical(id="dialog"):
            yield Static(Text(self._title, "bold"), id="question")
            yield Static(Text("\n".join(self._lines)), id="plan")
            with Horizontal(id="answers"):
                yield Button("Cancel", id="cancel", variant="primary")
                yield Button(self._verb, id="confirm")

    def on_mount(self) -> None:
        """Selects the answer that changes nothing."""
        self.query_one("#cancel").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Ends the dialog with the answer."""
        self.dismiss(event.button.id == "confirm")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001 - Textual passes it by position
        """Ends the dialog."""
        self.dismiss(answer)


class SearchPrompt(ModalScreen[str]):
    """Asks for a text to look for."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Yields one line to write in."""
        with Vertical(id="prompt"):
            yield Input(
                self._text, placeholder="id, label, session, tool, tag; Enter searches downwards"
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ends with the text."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Ends without a text."""
        self.dismiss("")


class LabelPrompt(ModalScreen[str | None]):
    """Asks for the label of a snapshot; empty removes it, and None leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def compose(self) -> ComposeResult:
        """Yields one line to write in."""
        with Vertical(id="prompt"):
            yield Input(self._label, placeholder="label of the snapshot; Enter sets it")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ends with the label."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Ends without an answer."""
        self.dismiss(None)


class KeyList(ModalScreen[None]):
    """All keys and what they mean; any key ends it."""

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.rows = rows

    def compose(self) -> ComposeResult:
        """Yields the list."""
        width = max(len(key) for key, _ in self.rows)
        lines = [f"{key.ljust(width)}  {meaning}" for key, meaning in self.rows]
        with Vertical(id="keys"):
            yield Static(Text("\n".join(lines)))

    def on_key(self, event: Key) -> None:
        """Ends it."""
        event.stop()
        self.dismiss(None)


class Choice(ModalScreen[int | None]):
    """Lines to choose one of; more of them may come while it is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "Back")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self.lines: list[Text] = []

    def compose(self) -> ComposeResult:
        """Yields a heading and the list."""
        with Vertical(id="choice"):
            yield Static(Text(self._title, "bold"), id="question")
            yield LineList(lambda index, _: self.lines[index].copy(), identity="choices")

    def add(self, lines: Sequence[Text]) -> None:
        """Adds lines at the end."""
        self.lines += lines
        self.query_one(LineList).show(len(self.lines))

    def on_line_list_chosen(self, event: LineList.Chosen) -> None:
        """Ends with the index of the line."""
        event.stop()
        self.dismiss(event.lines.selected)

    def on_line_list_moved(self, event: LineList.Moved) -> None:
        """Keeps the selection of this list from the lists behind it."""
        event.stop()

    def action_cancel(self) -> None:
        """Ends without a choice."""
        self.dismiss(None)
