"""Where the secret of an encrypted remote comes from: a command, a file, the environment, a prompt.

In that order; the first one that is there counts. Which command and which file, only the command
line and the user's own settings say, by the address of the remote. A store may be anybody's, so
what an earlier version kept in it is shown and not used.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

import click

from treesnap.cli.output.streams import is_terminal
from treesnap.core.model.errors import (
    ErrorCode,
    InvalidArgument,
    OperationFailed,
    Refused,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from treesnap.core.handle import Handle
    from treesnap.core.model.events import Monitor
    from treesnap.remote import Remotes
    from treesnap.remote.connection import SecretSource
    from treesnap.remote.keys import Secret
    from treesnap.remote.records import KnownRemote

RAW_KEY_VARIABLE = "TREESNAP_REMOTE_KEY"
PASSPHRASE_VARIABLE = "TREESNAP_REMOTE_PASSPHRASE"  # noqa: S105 - its name, not a secret
NEW_PASSPHRASE_VARIABLE = "TREESNAP_REMOTE_NEW_PASSPHRASE"  # noqa: S105 - likewise
_FILE_SIZE_MAX = 1 << 16


class Source(NamedTuple):
    """What gives the secret of a remote, as the user says."""

    command: str | None = None
    file: str | None = None


def secret_of(handle: Handle) -> Callable[[KnownRemote], SecretSource]:
    """Returns what says where the secret of a remote comes from; that is asked when needed."""
    monitor = handle.context.monitor
    return lambda known: _possible(known, lambda: _remembered(known, monitor))


def remotes_of(handle: Handle) -> Remotes:
    """Returns the remotes of a handle's store; their secrets are asked for when needed."""
    from treesnap.remote import Remotes

    return Remotes(handle, secret_of(handle))


def new_secret_of(known: KnownRemote, source: Source) -> SecretSource:
    """Returns what gives the secret of a remote that may be new: a person types it twice."""
    return _possible(known, lambda: source, confirms=True)


def remember(handle: Handle, url: str, source: Source) -> None:
    """Keeps in the user's own settings where the secret of the remote at an address comes from.

    Or only that the user named it, where a store is not proven to be the user's own.
    """
    from treesnap.core.ops.user_settings import (
        PASSPHRASE_COMMAND,
        PASSPHRASE_FILE,
        SAFE_REMOTE,
        change_of_user,
    )
    from treesnap.core.store.layout import Layout
    from treesnap.core.store.ownership import is_own

    if source != Source():
        change_of_user(
            {PASSPHRASE_COMMAND + url: source.command, PASSPHRASE_FILE + url: source.file}
        )
    elif not is_own(handle.context.fs, Layout(handle.store_path)):
        change_of_user({SAFE_REMOTE + url: "true"})


def _remembered(known: KnownRemote, monitor: Monitor) -> Source:
    """Returns what the user's own settings say; warns of what the store says beside that."""
    from treesnap.core.ops.user_settings import PASSPHRASE_COMMAND, PASSPHRASE_FILE, user_setting

    url = known.url
    source = Source(user_setting(PASSPHRASE_COMMAND + url), user_setting(PASSPHRASE_FILE + url))
    for kind, of_store, mine in (
        (PASSPHRASE_COMMAND, known.secret_command, source.command),
        (PASSPHRASE_FILE, known.secret_file, source.file),
    ):
        if of_store is not None and mine is None:
            setting = shlex.join((kind + printable(url), printable(of_store)))
            monitor.warn(
                WarningCode.STORE_NOT_OBEYED,
                f"What the store says about the passphrase of {quoted(url)} is not used, because "
                f"only you may say that: 'snap config {setting}' does, if you want it",
            )
    return source


def new_passphrase(command: str | None, path: str | None) -> Secret:
    """Returns a passphrase that is to open a remote as well; a person types it twice."""
    from treesnap.remote.keys import Secret

    if command is not None:
        return Secret.passphrase(_printed(command))
    if path is not None:
        return Secret.passphrase(_first_line(path))
    if passphrase := os.environ.get(NEW_PASSPHRASE_VARIABLE):
        return Secret.passphrase(passphrase)
    typed = _typed("New passphrase", NEW_PASSPHRASE_VARIABLE, confirms=True)
    return Secret.passphrase(typed)


def _possible(
    known: KnownRemote, source: Callable[[], Source], *, confirms: bool = False
) -> SecretSource:
    """Returns what gives the secret of a remote; ``source`` is asked when that is needed."""
    from treesnap.remote.connection import PossibleSecret

    class OfUser(PossibleSecret):
        def is_set(self) -> bool:
            return source() != Source() or bool(
                os.environ.get(RAW_KEY_VARIABLE) or os.environ.get(PASSPHRASE_VARIABLE)
            )

    return OfUser(lambda: _secret(known, source(), confirms=confirms))


def _secret(known: KnownRemote, source: Source, *, confirms: bool) -> Secret:
    from treesnap.remote.keys import Secret
    from treesnap.remote.paper import has_lines, key_of

    if source.command is not None:
        return Secret.passphrase(_printed(source.command))
    if source.file is not None:
        return Secret.passphrase(_first_line(source.file))
    if key := os.environ.get(RAW_KEY_VARIABLE):
        return Secret.paper_key(key_of(key)) if has_lines(key) else Secret.raw_key(key)
    if passphrase := os.environ.get(PASSPHRASE_VARIABLE):
        return Secret.passphrase(passphrase)
    typed = _typed(f"Passphrase of {known.url}", PASSPHRASE_VARIABLE, confirms=confirms)
    return Secret.passphrase(typed)


def _typed(question: str, variable: str, *, confirms: bool) -> str:
    """Returns what a person types; raises Refused where there is no terminal."""
    if not is_terminal("stdin"):
        raise Refused(
            f"A passphrase is needed: ${variable} is not set, and no terminal can be asked for it",
            code=ErrorCode.REMOTE_LOCKED,
        )
    typed: str = click.prompt(question, hide_input=True, confirmation_prompt=confirms, err=True)
    return typed


def _printed(command: str) -> str:
    """Returns the first line that a command prints; raises OperationFailed."""
    ended = subprocess.run(command, shell=True, stdout=subprocess.PIPE, check=False)  # noqa: S602 - the user's own command
    if ended.returncode != 0:
        # It may hold a secret itself, so it is not shown.
        raise OperationFailed(f"The command for the passphrase ended with {ended.returncode}")
    return os.fsdecode(ended.stdout).partition("\n")[0]


def _first_line(path: str) -> str:
    """Returns the first line of a file; raises InvalidArgument."""
    from treesnap.core.fs.durable import read_file
    from treesnap.core.fs.local import LocalFileSystem

    try:
        content = read_file(LocalFileSystem(), path, _FILE_SIZE_MAX)
    except OSError as error:
        raise InvalidArgument(
            f"The passphrase file {quoted(path)} cannot be read: {error.strerror}", path=path
        ) from error
    return os.fsdecode(content).partition("\n")[0]
