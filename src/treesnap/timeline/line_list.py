"""A list of lines that draws only those on the screen, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip


class LineList(ScrollView, can_focus=True):
    """Lines by their index, with one of them selected; a click or a key moves that."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f,space", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("end,G", "last", "Last", show=False),
        Binding("left", "shift(-8)", "Left", show=False),
        Binding("right", "shift(8)", "Right", show=False),
        Binding("enter", "choose", "Preview", show=False),
    ]

    KEYS = (
        ("up, down, j, k", "move"),
        ("Page up, Page down, g, G", "move by a page, to the first, to the last"),
        ("left, right", "show what is beside the pane"),
        ("Enter", "to the paths; on a path, its whole file as it was, or the changes again"),
    )
    """What the keys above mean, for a list of all keys."""

    class Moved(Message):
        """Another line is selected."""

        def __init__(self, lines: LineList) -> None:
            super().__init__()
            self.lines = lines

        @property
        def control(self) -> LineList:
            """The list."""
            return self.lines

    class Chosen(Moved):
        """Enter was pressed on the selected line."""

    def __init__(
        self,
        draw: Callable[[int, int], Text],
        *,
        identity: str,
        selects: bool = True,
        width: int = 0,
    ) -> None:
        super().__init__(id=identity)
        self._draw = draw
        """Returns a line by its index and the width that there is."""
        self._selects = selects
        self._line_width = width
        self.count: int = 0
        self.selected: int = 0
        self.lines_drawn: int = 0
        """How many lines were drawn so far."""

    def show(self, count: int, selected: int | None = None) -> None:
        """Has so many lines now; selects one of them, by default the same index."""
        self.count = count
        line = self.selected if selected is None else selected
        self.selected = max(0, min(line, count - 1))
        self.virtual_size: Size = Size(self._line_width, count)
        if self._selects:
            self._scroll_to_selected()
        self.refresh()

    def select(self, index: int) -> None:
        """Selects a line and says so, if it is another one."""
        index = max(0, min(index, self.count - 1))
        if self.count and index != self.selected:
            self.selected = index
            self._scroll_to_selected()
            self.refresh()
            self.post_message(self.Moved(self))

    def render_line(self, y: int) -> Strip:
        """Draws one line of the screen."""
        offset_x, offset_y = self.scroll_offset
        index, width = y + offset_y, self.scrollable_content_region.width
        base = self.rich_style
        if index >= self.count:
            return Strip.blank(width, base)
        self.lines_drawn += 1
        text = self._draw(index, width)
        text.end = ""
        strip = Strip(list(text.render(self.app.console)))
        strip = strip.crop_extend(offset_x, offset_x + width, None)
        if self._selects and index == self.selected:
            return strip.apply_style(base + Style(reverse=self.has_focus, bold=True))
        return strip.apply_style(base)

    def action_move(self, lines: int) -> None:
        """Moves the selection, or scrolls where nothing is selected."""
        if self._selects:
            self.select(self.selected + lines)
        else:
            self.scroll_relative(y=lines, animate=False, immediate=True)

    def action_page(self, pages: int) -> None:
        """Moves by a screen."""
        self.action_move(pages * max(1, self.scrollable_content_region.height - 1))

    def action_first(self) -> None:
        """Goes to the first line."""
        self.action_move(-self.count)

    def action_last(self) -> None:
        """Goes to the last line."""
        self.action_move(self.count)

    def action_shift(self, columns: int) -> None:
        """Scrolls sideways."""
        self.scroll_relative(x=columns, animate=False, immediate=True)

    def action_choose(self) -> None:
        """Says that Enter was pressed."""
        if self.count:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Selects the line that was clicked."""
        if self._selects:
            self.select(event.y + self.scroll_offset.y)

    def watch_has_focus(self, value: bool) -> None:  # noqa: FBT001 - the signature is Textual's
        """Draws the selection anew."""
        super().watch_has_focus(value)
        self.refresh()

    def _scroll_to_selected(self) -> None:
        height = self.scrollable_content_region.height or 1
        top = self.scroll_offset.y
        if self.selected < top:
            self.scroll_to(y=self.selected, animate=False, immediate=True)
        elif self.selected >= top + height:
            self.scroll_to(y=self.selected - height + 1, animate=False, immediate=True)
