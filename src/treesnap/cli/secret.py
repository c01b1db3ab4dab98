"""Where the secret of an encrypted remote comes from: a command, a file, the environment, a prompt.

In that order; the first one that is there counts. A command and a file can be remembered with
the remote, a secret never is.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import click

from treesnap.cli.streams import is_terminal
from treesnap.errors import ErrorCode, InvalidArgument, OperationFailed, Refused, quoted

if TYPE_CHECKING:
    from treesnap.codec.remote import KnownRemote
    from treesnap.remote.connection import SecretSource
    from treesnap.remote.keys import Secret

RAW_KEY_VARIABLE = "TREESNAP_REMOTE_KEY"
PASSPHRASE_VARIABLE = "TREESNAP_REMOTE_PASSPHRASE"  # noqa: S105 - its name, not a secret
NEW_PASSPHRASE_VARIABLE = "TREESNAP_REMOTE_NEW_PASSPHRASE"  # noqa: S105 - likewise
_FILE_SIZE_MAX = 1 << 16


def secret_of(known: KnownRemote) -> SecretSource:
    """Returns what gives the secret of a remote, asked when it is needed."""
    return lambda: _secret(known)


def new_secret_of(known: KnownRemote) -> SecretSource:
    """Returns what gives the secret of a remote that may be new: a person types it twice."""
    return lambda: _secret(known, confirms=True)


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


def _secret(known: KnownRemote, *, confirms: bool = False) -> Secret:
    from treesnap.remote.keys import Secret

    if known.secret_command is not None:
        return Secret.passphrase(_printed(known.secret_command))
    if known.secret_file is not None:
        return Secret.passphrase(_first_line(known.secret_file))
    if key := os.environ.get(RAW_KEY_VARIABLE):
        return Secret.raw_key(key)
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
    from treesnap.fs.durable import read_file
    from treesnap.fs.local import LocalFileSystem

    try:
        content = read_file(LocalFileSystem(), path, _FILE_SIZE_MAX)
    except OSError as error:
        raise InvalidArgument(
            f"The passphrase file {quoted(path)} cannot be read: {error.strerror}", path=path
        ) from error
    return os.fsdecode(content).partition("\n")[0]
