"""Names that are not commands: those of other tools, typing errors, ``help`` and ``version``.

An alias runs the command that it means. A name whose meaning differs between tools, or that
would delete or overwrite something, only says what to type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treesnap.core.features import feature_of

ALIASES = {
    "annotate": "blame",
    "backup": "create",
    "check": "verify",
    "checkpoint": "create",
    "commit": "create",
    "dump": "cat",
    "ls-files": "ls",
    "save": "create",
    "search": "grep",
    "snapshot": "create",
    "snapshots": "list",
    "st": "status",
    "unmount": "umount",
}
"""Names that work, each with the command that it runs; none of these commands deletes files."""

HINTS = {
    "branch": "'snap fork REF DIR' makes a working copy with a history of its own",
    "checkout": "'snap restore REF' restores a snapshot, 'snap restore REF PATH' only a path",
    "export": "'snap archive REF -o FILE' writes a snapshot to a tar archive",
    "extract": "'snap restore REF --to DIR' writes a snapshot into another directory",
    "forget": (
        "'snap delete REF' deletes a snapshot, 'snap prune' those that no rule keeps, and "
        "'snap root forget' a whole history"
    ),
    "init": "none is needed: the first 'snap create' makes the store",
    "merge": "'snap adopt DIR' brings the work of a fork into the root that it is of",
    "recover": "'snap restore latest' restores the newest snapshot",
    "remove": "'snap delete REF' deletes a snapshot; 'rm' removes files",
    "reset": "'snap restore latest' restores the newest snapshot",
    "rm": "'snap delete REF' deletes a snapshot; 'rm' removes files",
    "rollback": "'snap restore latest' restores the newest snapshot",
    "stash": "'snap create' takes a snapshot, and 'snap restore latest' goes back to it",
    "switch": "'snap restore REF' restores a snapshot",
    "tar": "'snap archive REF -o FILE' writes a snapshot to a tar archive",
    "unlock": "none is needed: a lock ends with its process",
    "worktree": "'snap fork REF DIR' makes a working copy with a history of its own",
}
"""Names that do nothing, each with what to type instead."""

OPTION_HINTS = {
    ("list", "--remote"): "'snap remote snapshots REMOTE' lists snapshots on a remote",
    ("prune", "--remote"): "'snap remote prune REMOTE' prunes the history on a remote",
    ("verify", "--remote"): "'snap remote verify REMOTE' checks a remote",
    ("watch", "--push"): "'snap watch --then \"snap push REMOTE --all\"' pushes each snapshot",
}
"""Options that a command does not have, each with what to type instead."""

SUGGESTED_MAX = 3
"""Close matches that a hint names."""
LIKENESS_MARGIN = 0.1
"""How much less than the closest match another one may resemble what was typed."""


def expanded(args: Sequence[str]) -> list[str]:
    """Returns the words of a command line with an alias replaced by what it means.

    ``help COMMAND`` is ``COMMAND --help``, ``help --all`` the help with all commands, and
    ``version`` is ``--version``.
    """
    name, *rest = args
    if name == "help":
        if rest == ["--all"]:
            return ["--all", "--help"]
        words = [ALIASES.get(word, word) for word in rest[:2] if word != "help"]
        return [*words, "--help"]
    if name == "version" and not rest:
        return ["--version"]
    return [ALIASES.get(name, name), *rest]


def hint_for(name: str, group: str, commands: Iterable[str], *, is_top: bool) -> str:
    """Returns what to type instead of a name that is not a command of a group.

    ``group`` is the group as it was typed, such as ``snap plan``.
    """
    if is_top and name in HINTS:
        return HINTS[name].replace("'snap ", f"'{group} ")
    if is_top and (feature := feature_of(name)) is not None:
        return f"this treesnap was installed without its part {feature!r}: install it whole"
    meanings = {command: command for command in commands}
    if is_top:
        meanings |= {alias: command for alias, command in ALIASES.items() if len(alias) > 2}
    meant = dict.fromkeys(f"{group} {meanings[match]}" for match in closest(name, meanings))
    return did_you_mean(meant) or f"see '{group} {'help --all' if is_top else '--help'}'"


def hint_for_option(command: str, option: str, program: str, options: Iterable[str]) -> str | None:
    """Returns what to type instead of an option that a command does not have, or None."""
    hint = OPTION_HINTS.get((command, option))
    if hint is not None:
        return hint.replace("'snap ", f"'{program} ")
    return did_you_mean(closest(option, options)) or None


def did_you_mean(texts: Iterable[str]) -> str:
    """Returns a question that names what may have been meant; the empty string for nothing."""
    quoted = [f"'{text}'" for text in texts]
    return f"did you mean {' or '.join(quoted)}?" if quoted else ""


def closest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names that a name resembles, and only those that it resembles about as much."""
    from difflib import SequenceMatcher, get_close_matches

    close = get_close_matches(name, list(names), n=SUGGESTED_MAX)
    likeness = {match: SequenceMatcher(None, match, name).ratio() for match in close}
    return [match for match in close if likeness[match] > likeness[close[0]] - LIKENESS_MARGIN]
