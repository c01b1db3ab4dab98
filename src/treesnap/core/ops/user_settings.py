"""The settings of a user, which hold for all stores, in the user's own configuration directory.

They are those that run a program, say where a secret is, or say which directories of others are
used all the same: a store may come from another machine or belong to another user, and does not
vouch for itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import ensure_directories, is_there
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import InvalidArgument, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.context import safe_directories_given, user_config_path
from treesnap.core.ops.settings_file import (
    document_of,
    flat,
    invalid,
    load,
    named,
    save,
)
from treesnap.core.store.lock import held
from treesnap.core.store.ownership import WRITABLE_BY_OTHERS
from treesnap.core.worktree.scan.ignore import given

_DIFF = "diff."
PASSPHRASE_COMMAND, PASSPHRASE_FILE = "passphrase-command.", "passphrase-file."
"""What the settings begin with that say where the passphrase of the remote at a URL comes from."""
SAFE_DIRECTORIES = "safe-directories"
SAFE_REMOTE = "safe-remote."
_OF_REMOTES = (PASSPHRASE_COMMAND, PASSPHRASE_FILE, SAFE_REMOTE)
_BEGINNINGS = {_DIFF: "PATTERN", **dict.fromkeys(_OF_REMOTES, "URL")}
"""What the settings of a user begin with, and what follows; but for the safe directories."""
SHOWN_NAMES = (*map("".join, _BEGINNINGS.items()), SAFE_DIRECTORIES)
_LOCK = "config.lock"
_LOCK_WAIT_S = 5.0
"""Others hold the lock for moments."""


class TextCommand(NamedTuple):
    """A command that prints files as text, for differences."""

    pattern: str
    """Which files, in gitignore syntax."""
    line: str
    words: tuple[str, ...]


def is_of_user(name: str) -> bool:
    """Returns whether a setting is one of a user."""
    return name == SAFE_DIRECTORIES or name.startswith(tuple(_BEGINNINGS))


def safe_directories() -> tuple[list[str], list[str]]:
    """Returns the directories whose owners this user trusts, by the environment or the setting.

    Beside them, what is wrong with words that name none, and with a file that cannot be used.
    """
    given = safe_directories_given()
    problems = [
        f"{quoted(word)} in SNAP_SAFE_DIRECTORIES is not an absolute path"
        for word in given
        if not os.path.isabs(word)
    ]
    words: list[str] = []
    try:
        words = (user_setting(SAFE_DIRECTORIES) or "").split(os.pathsep)
    except InvalidArgument as error:
        problems.append(error.message)
    return list(filter(os.path.isabs, (*given, *words))), problems


def is_safe_remote(url: str) -> bool:
    """Returns whether the user names the remote at an address; raises what the others do."""
    values = user_values()
    return any(beginning + url in values for beginning in _OF_REMOTES)


def text_commands() -> list[TextCommand]:
    """Returns which files differences show by the text that a command prints; the last one counts.

    They are in the user's own file, ``[diff]`` with a pattern for each. Costs two looks. Raises
    InvalidArgument for a file that another user may have written, or that says something else.
    """
    return [
        _text_command(name.removeprefix(_DIFF), value)
        for name, value in user_values().items()
        if name.startswith(_DIFF)
    ]


def user_setting(key: str) -> str | None:
    """Returns a setting of the user, or None; costs and raises what :func:`text_commands` does."""
    return user_values().get(key)


def user_values() -> dict[str, str]:
    """Returns what the user's own file holds, checked; costs and raises as the others do."""
    path = user_config_path()
    document = document_of(LocalFileSystem(), os.path.realpath(path)) if path is not None else {}
    if path is None or not document:
        return {}
    _refuse_foreign(path)
    values = {}
    for name, value in flat(document):
        if not is_of_user(name):
            raise invalid(path, f"there is no setting {name!r} of a user")
        if not isinstance(value, str):
            raise invalid(path, f"{name} is a {type(value).__name__}")
        with named(path, name):
            _check_of_user(name, value)
        values[name] = value
    return values


def _check_of_user(name: str, value: str) -> None:
    """Raises InvalidArgument for what a setting of a user cannot be."""
    if name.startswith(_DIFF):
        _text_command(name.removeprefix(_DIFF), value)
    elif not value.strip():
        raise InvalidArgument("It is empty")
    elif name == SAFE_DIRECTORIES:
        for word in value.split(os.pathsep):
            if not os.path.isabs(word):
                raise InvalidArgument(f"{quoted(word)} is not an absolute path")
    elif name.startswith(SAFE_REMOTE):
        if value != "true":
            raise InvalidArgument(f"{value!r} is not 'true'")
    elif name.startswith(PASSPHRASE_FILE) and not os.path.isabs(value):
        raise InvalidArgument(f"{quoted(value)} is not an absolute path")


def _text_command(pattern: str, line: str) -> TextCommand:
    import shlex

    given((pattern,))
    if pattern.startswith("!"):
        raise InvalidArgument(f"The pattern {pattern!r} names no files, it excepts some")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidArgument(f"{line!r} is not a command: {error}") from error
    if not words:
        raise InvalidArgument("The command is empty")
    return TextCommand(pattern, line, tuple(words))


def _refuse_foreign(path: str) -> None:
    """Raises InvalidArgument for a file that names programs and that others can write.

    A user who may write in its directory can put another file in its place, and so can one who may
    write where the link to it is. What is not there yet has no owner.
    """
    real = os.path.realpath(path)
    directories = dict.fromkeys((os.path.dirname(real), os.path.dirname(path)))
    for what, checked in (("it", real), *(("its directory", each) for each in directories)):
        try:
            status = os.stat(checked)
        except FileNotFoundError:
            continue
        if status.st_uid not in {0, os.geteuid()}:
            raise invalid(path, f"{what} belongs to another user, and it names programs to run")
        if status.st_mode & WRITABLE_BY_OTHERS:
            import shlex

            mend = shlex.join(("chmod", "go-w", printable(checked)))
            why = f"other users can write to {what}, and it names programs to run: '{mend}'"
            raise invalid(path, why)


def change_of_user(changes: Mapping[str, str | None]) -> None:
    """Writes or removes settings in the user's own file, all or none; durable after return.

    One process after the other does, so none writes what another one has just changed. Raises
    InvalidArgument for a value or a file that cannot be used, and without a home directory; Busy.
    """
    path = user_config_path()
    if path is None:
        raise InvalidArgument(
            "There is no home directory to keep settings of a user in, and XDG_CONFIG_HOME is not "
            "set"
        )
    for key, value in changes.items():
        if value is not None:
            _check_of_user(key, value)
    fs, settings_path = LocalFileSystem(), os.path.realpath(path)
    _refuse_foreign(path)
    if not any(changes.values()) and not is_there(fs, settings_path):
        return
    with translating_os_errors("write the settings"):
        for directory in dict.fromkeys((os.path.dirname(settings_path), os.path.dirname(path))):
            ensure_directories(fs, directory)
        # Beside the name, not beside what it leads to: that may be among files to be shared.
        lock = os.path.join(os.path.dirname(path), _LOCK)
        what = f"The file {quoted(path)}"
        with held(fs, lock, operation="config", what=what, wait_s=_LOCK_WAIT_S):
            _change(fs, settings_path, changes)


def _change(fs: FileSystem, path: str, changes: Mapping[str, str | None]) -> None:
    """Writes or removes settings in a file; the caller has locked it."""
    import tomlkit

    user_values()
    document = tomlkit.parse(load(fs, path))
    for key, value in changes.items():
        table_name, _, name = key.partition(".")
        table = document.setdefault(table_name, tomlkit.table()) if name else document
        table.pop(name or key, None)
        if value is not None:
            table[name or key] = value
        if name and not table:
            document.pop(table_name)
    save(fs, path, tomlkit.dumps(document), temporary=os.path.dirname(path))
