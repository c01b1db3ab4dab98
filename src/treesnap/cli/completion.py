"""``snap completion``: the scripts for shells, and what they ask for.

A script is evaluated when a shell starts. At a tab it runs the command with the line up to the
cursor in ``COMP_LINE``; the answer has a line for each word that fits: its type, the word and what
it means, with a tab between them. The types are ``plain``, ``path``, and ``file`` and ``dir``,
which tell the shell to complete names of files by itself.

Invariants: an answer changes nothing, and no error reaches the terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pkgutil import get_data

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.core.model.type_names import cast
from treesnap.core.own_program import NAMES

SHELLS = ("bash", "zsh", "fish")
HELP_LENGTH_MAX = 80
"""Characters of what a word means."""
_SPECIAL = re.compile(r"([^\w@%+=:,./~^-])")
"""What a shell reads as more than a character of a word."""
_SPECIAL_IN_QUOTES = re.compile(r"([$`\"\\])")
"""The same between double quotes."""
_EXPANDED = frozenset("$`")
"""What bash leaves as it is in the name of a file that is not there, and then runs."""


@command(
    "completion",
    prints_only=True,
    examples=[
        "snap completion bash > ~/.local/share/bash-completion/completions/snap",
        "snap completion zsh",
        "snap completion fish > ~/.config/fish/completions/snap.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@pass_invocation
def completion(invocation: Invocation, *, shell: str) -> None:
    """Print a script with which a shell completes commands, options and REFs.

    To load it whenever bash starts: eval "$(treesnap completion bash)" in ~/.bashrc; the same
    with zsh in ~/.zshrc. In fish: 'treesnap completion fish | source' in config.fish.
    """
    programs = _own_programs(invocation.program)
    text = script(shell, programs)
    invocation.output.result(
        "completion",
        lambda: {"shell": shell, "programs": programs, "script": text},
        [text.removesuffix("\n")],
    )


def _own_programs(program: str) -> list[str]:
    """Returns the names of this command, without one that is another program's on the path."""
    import shutil  # not needed at a tab

    own = shutil.which(program)
    here = os.path.dirname(os.path.realpath(own)) if own is not None else None
    names = []
    for name in sorted(NAMES):
        program_path = shutil.which(name)
        is_other = (
            program_path is not None and os.path.dirname(os.path.realpath(program_path)) != here
        )
        if name == program or not is_other:
            names.append(name)
    return names


def script(shell: str, programs: Sequence[str]) -> str:
    """Returns the script that completes these names of the command."""
    text = cast(bytes, get_data("treesnap.cli", f"completion.{shell}")).decode()
    return text.replace("%(programs)s", " ".join(programs))


def answer(command: click.Command, program: str, instruction: str) -> int:
    """Prints what a shell asked for and returns the exit code; prints nothing when that fails."""
    shell, _, what = instruction.partition("_")
    if shell not in SHELLS:
        return 1
    if what == "source":
        sys.stdout.write(script(shell, [program]))
        return 0
    try:
        text = LineCompletion(command, program, shell).complete()
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - in the middle of a line that is being typed
        return 0
    return 0


class LineCompletion(ShellComplete):
    """The words that fit at the end of a line."""

    def __init__(self, command: click.Command, program: str, shell: str) -> None:
        invocation = Invocation(program)
        invocation.output.quiet = True
        super().__init__(command, {"obj": invocation}, program, "")
        self._shell = shell
        self._line = os.environ.get("COMP_LINE", "")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Returns the words before the one that is being typed, and that one."""
        words = split_arg_string(self._line)
        is_new = not words or (self._line[-1:].isspace() and not self._line.endswith("\\ "))
        is_new = is_new and not self._quote
        return (words[1:], "") if is_new else (words[1:-1], words[-1])

    @property
    def _quote(self) -> str:
        """The quotation mark that is open at the end of the line, or nothing."""
        bare = re.sub(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", "", self._line)
        return next((sign for sign in bare if sign in "'\""), "")

    def complete(self) -> str:
        """Returns a line for each word that fits."""
        arguments, typed = self.get_completion_args()
        items = self.get_completions(arguments, typed)
        value = typed.partition("=")[2] if typed.startswith("--") and "=" in typed else typed
        if value != typed and self._shell != "bash":  # which takes the option for a word of its own
            items = [_with_prefix(typed.removesuffix(value), item) for item in items]
            value = typed
        kept = [item for item in items if item.value.isprintable()]
        if self._shell == "bash":
            kept = self._safe_in_bash(kept)
        return "".join(f"{self._formatted(item, value)}\n" for item in kept)

    def _safe_in_bash(self, items: list[CompletionItem]) -> list[CompletionItem]:
        """Returns what bash reads as it stands once it is inserted; a stranger chose the names.

        Names of files are left to bash, which quotes them better, unless one could be a command.
        """
        if any(item.type == "path" and _EXPANDED.intersection(item.value) for item in items):
            items = [CompletionItem(item.value) if item.type == "path" else item for item in items]
        unwritable = {"'": "'", '"': "!"}.get(self._quote)  # between these quotes
        return [
            item
            for item in items
            if item.type == "path" or unwritable is None or unwritable not in item.value
        ]

    def _formatted(self, item: CompletionItem, typed: str) -> str:
        word = item.value
        if self._shell == "bash" and item.type in {"plain", "path"}:
            breaks = set(os.environ.get("COMP_WORDBREAKS", "")) & set(":=@")
            cut = max((typed.rfind(sign) for sign in breaks), default=-1) + 1
            word = word[cut:]
            if item.type == "plain":
                word = self._escaped(word)
        meaning = "".join(sign if sign.isprintable() else " " for sign in item.help or "").rstrip(
            "."
        )
        return f"{item.type}\t{word}\t{meaning[:HELP_LENGTH_MAX]}"

    def _escaped(self, word: str) -> str:
        """Returns a word as it has to stand in the line, inside of the quotes that are open."""
        if self._quote == "'":
            return word
        special = _SPECIAL_IN_QUOTES if self._quote else _SPECIAL
        return special.sub(r"\\\1", word)


def _with_prefix(prefix: str, item: CompletionItem) -> CompletionItem:
    if item.type in {"plain", "path"}:
        return CompletionItem(prefix + item.value, item.type, item.help)
    return item
