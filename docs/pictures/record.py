"""Records sessions: runs them in a real terminal and draws what it shows as SVG.

Type ``python docs/pictures/record.py`` to make the pictures anew. The commands of ``session.svg``
are those of the first ``console`` block of README.md; the others are below. They run in bash in a
pseudoterminal, with a store and a home of their own, which are removed at the end.
``session-moving.svg`` is ``session.svg`` as it was typed: the same texts, uncovered one by one.
"""

from __future__ import annotations

import html
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
COLUMNS = 100
LOOP_S = 20
HOLD_S = 6
"""How long the end of the moving session stays, to be read."""
KEY_S, ANSWER_S, THOUGHT_S = 0.05, 0.4, 1.2
"""The paces of a key, of an answer, and before a command; all are stretched to fill the loop."""
WORK = [
    "mkdir -p garden/photos; cd garden",
    "printf 'tomatoes\\nbeans\\n' > plan.txt; head -c 90000 /dev/urandom > photos/bed.raw",
    "snap create -q -m 'first plan'",
    "echo peas >> plan.txt; snap create -q -m 'add peas'",
    "rm -r photos; echo weeds > plan.txt; snap create -q -m 'clean up'",
    "snap restore -q 'latest~1'; echo leeks >> plan.txt",
]
"""What was done before the pictures of a history begin."""
PICTURES = {
    "log": ["snap log", "snap log plan.txt -p -n 1"],
    "overview": ["snap", "snap diff"],
}
"""The commands in each picture, typed after that."""

LARGE = ["mkdir runs; cd runs; for i in 1 2 3 4; do head -c 256M /dev/urandom > run-$i.bin; done"]
PROGRESS = ['snap create -m "all runs"', "rm run-*", "snap restore latest"]
"""What takes long enough for a bar; the picture has each bar as it was halfway."""


def commands() -> list[str]:
    """Returns the commands of the README's first session."""
    block = README.read_text(encoding="utf-8").split("```console\n")[1].split("```")[0]
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def session(
    typed: list[str], home: Path, before: Sequence[str] = (), *, keeps_bars: bool = False
) -> str:
    """Returns what a terminal shows while the commands are typed into it.

    What comes ``before`` is not shown, and progress only with ``keeps_bars``.
    """
    lines = [f"{{ {line}; }} > /dev/null 2>&1" for line in before]
    lines += [f"printf '\\e[1;32m$\\e[0m %s\\n' {quoted(line)}; {line}" for line in typed]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SNAP_")}
    variables |= {
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "SNAP_PAGER": "",
    }
    ours, theirs = pty.openpty()
    bash = ["bash", "--noprofile", "--norc", "-c", "\n".join(lines)]
    with subprocess.Popen(bash, cwd=home, env=variables, stdout=theirs, stderr=theirs):  # noqa: S603 - our own words
        os.close(theirs)
        shown = b""
        while piece := read(ours):
            shown += piece
    os.close(ours)
    text = shown.decode(errors="replace")
    return as_seen(with_bars(text) if keeps_bars else text).replace(str(home), "~")


def quoted(text: str) -> str:
    """Returns a word for the shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def read(terminal: int) -> bytes:
    """Returns what was printed; nothing once the other side is closed."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def as_seen(text: str) -> str:
    """Returns what stays on the screen: what progress drew is erased, as it asks for."""
    lines = [""]
    row = 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif up := re.fullmatch(r"\x1b\[(\d*)A", piece):
            row -= int(up[1] or 1)
        elif piece.endswith("m") or not piece.startswith(("\x1b", "\r")):
            lines[row] += piece
    return "\n".join(lines)


def with_bars(text: str) -> str:
    """Returns what was printed, with each bar as it was halfway in place of its whole course."""

    def halfway(course: re.Match[str]) -> str:
        drawn = course[1].split("\r\x1b[2K")
        return drawn[len(drawn) // 2] + "\n"

    return re.sub(r"([^\n]*\r\x1b\[2K[^\n]*)\r\n\r\x1b\[1A\x1b\[2K", halfway, text)


def moving(svg: str, name: str) -> str:
    """Returns a picture of a session that is typed anew every ``LOOP_S``, to the same bytes always.

    Each line of the picture is cut by a rectangle of its own. Keyframes widen these: character by
    character where a command is typed, at once where it answers. Nothing but CSS moves, so that an
    ``<img>`` shows it, and nothing is loaded. Who prefers no motion sees the whole session.
    """
    lines: dict[int, str] = {}
    for number, words in re.findall(rf'clip-path="url\(#{name}-line-(\d+)\)">([^<]*)</text>', svg):
        lines[int(number)] = lines.get(int(number), "") + html.unescape(words).rstrip("\n")
    moves: list[tuple[int, float, float, int]] = []
    now_s = 0.0
    for number, text in sorted(lines.items()):
        if text.startswith("$\N{NO-BREAK SPACE}"):
            now_s += THOUGHT_S
            typed_s = len(text) * KEY_S
            moves.append((number, now_s, now_s + typed_s, len(text)))
            now_s += typed_s + ANSWER_S
        else:
            moves.append((number, now_s, now_s, 0))
    pace = (LOOP_S - HOLD_S) / now_s
    rules = [_keyframes(f"{name}-{move[0]}", *move[1:], pace) for move in moves]
    rules += [
        f"#{name}-line-{number} rect {{ animation: {name}-{number} {LOOP_S}s infinite; }}"
        for number, *_ in moves
    ]
    style = "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}\n"
    last, top = max(lines), 1.5 + 24.4 * max(lines)
    if f'id="{name}-line-{last}"' not in svg:  # rich leaves the last line whole
        rect = f'<rect x="0" y="{top:g}" width="1220" height="24.65"/>'
        path = f'<clipPath id="{name}-line-{last}">{rect}</clipPath>\n    </defs>'
        svg = svg.replace("</defs>", path)
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    return svg.replace("</style>", style + "    </style>")


def _keyframes(name: str, from_s: float, to_s: float, length: int, pace: float) -> str:
    """Returns how one line is uncovered: its prompt first, then each of its characters."""
    start, end = (100 * pace * each / LOOP_S for each in (from_s, to_s))
    hidden, whole = "transform: scaleX(0)", "transform: scaleX(1)"
    if not length:
        return (
            f"@keyframes {name} {{ 0% {{ {hidden}; animation-timing-function: step-end }} "
            f"{start:.2f}%, 100% {{ {whole} }} }}"
        )
    prompt, typed = (f"transform: scaleX({each / COLUMNS:.2f})" for each in (2, length))
    return (
        f"@keyframes {name} {{ 0% {{ {hidden}; animation-timing-function: step-end }} "
        f"{start:.2f}% {{ {prompt}; animation-timing-function: steps({length - 2}) }} "
        f"{end:.2f}%, 100% {{ {typed} }} }}"
    )


def main() -> None:
    """Draws the pictures."""
    draw("session", commands())
    still = (HERE / "session.svg").read_text(encoding="utf-8")
    (HERE / "session-moving.svg").write_text(moving(still, "session"), encoding="utf-8")
    for name, typed in PICTURES.items():
        draw(name, typed, WORK)
    draw("progress", PROGRESS, LARGE, keeps_bars=True)


def draw(
    name: str, typed: list[str], before: Sequence[str] = (), *, keeps_bars: bool = False
) -> None:
    """Draws what the terminal shows of a session."""
    home = Path(tempfile.mkdtemp())
    try:
        shown = session(typed, home, before, keeps_bars=keeps_bars)
    finally:
        shutil.rmtree(home)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown.rstrip("\n")))
    svg = console.export_svg(title="treesnap", unique_id=name)
    (HERE / f"{name}.svg").write_text(svg.replace("Rich", "treesnap"), encoding="utf-8")


if __name__ == "__main__":
    main()
