"""``snap remote key``: what opens an encrypted remote."""

from __future__ import annotations

import os
import sys

import click

from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.streams import is_terminal
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, time_text
from treesnap.remote.commands.completion import remote_argument
from treesnap.remote.commands.secret import new_passphrase, remotes_of

_TYPED_SIZE_MAX = 1 << 16


@click.group("key", cls=SnapGroup)
def key() -> None:
    """List, add and remove what opens an encrypted remote.

    Several passphrases and keys may open one. A secret is changed by adding the new one and
    removing the old one; nothing else is written again.
    """


@key.command("list", prints_only=True, examples=["snap remote key list backup"])
@remote_argument("name", required=False)
@pass_invocation
def list_keys(invocation: Invocation, *, name: str | None) -> None:
    """List the key slots of an encrypted remote.

    Columns: id, what opens it, and whether it is the one in use.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        keys = remotes_of(handle).keys(name)
    lines = [
        f"{item.id[:12]}  {item.kind}" + ("  (in use)" if item.is_used else "") for item in keys
    ]
    invocation.output.result("remote.key.list", lambda: {"keys": keys}, lines)


@key.command(
    "add",
    examples=["snap remote key add backup", "snap remote key add backup --raw-key"],
)
@remote_argument("name", required=False)
@click.option("--passphrase-file", metavar="FILE", help="Read the new passphrase from a file.")
@click.option("--passphrase-command", metavar="COMMAND", help="Run a command that prints it.")
@click.option("--raw-key", is_flag=True, help="Make a raw key, and print it.")
@pass_invocation
def add_key(
    invocation: Invocation,
    *,
    name: str | None,
    passphrase_file: str | None,
    passphrase_command: str | None,
    raw_key: bool,
) -> None:
    """Let another passphrase or key open an encrypted remote.

    The new passphrase comes from --passphrase-command, --passphrase-file,
    $TREESNAP_REMOTE_NEW_PASSPHRASE, or the terminal.
    """
    from treesnap.remote.keys import Secret, new_raw_key

    made = new_raw_key() if raw_key else None

    def secret() -> Secret:
        if made is not None:
            return Secret.raw_key(made)
        return new_passphrase(passphrase_command, passphrase_file)

    with invocation.open(progress=False, needs_root=False) as handle:
        info = remotes_of(handle).add_key(name, secret)
    lines = [f"Added the key slot {info.id[:12]}: {info.kind}", *([made] if made else [])]
    invocation.output.result("remote.key.add", lambda: {**info._asdict(), "raw_key": made}, lines)


@key.command(
    "paper",
    examples=["snap remote key paper backup | lpr", "snap remote key paper backup --check"],
)
@remote_argument("name", required=False)
@click.option("--check", is_flag=True, help="Type a paper again, and see whether it opens it.")
@pass_invocation
def paper(invocation: Invocation, *, name: str | None, check: bool) -> None:
    """Make a key to be printed and kept, which opens an encrypted remote as well.

    Four of its lines are the key, each with a check. $TREESNAP_REMOTE_KEY takes them, whatever
    else is typed beside them: with the bucket and the paper, everything is there again. A paper
    that was made before the keys were rotated or changed opens nothing that was stored later.
    """
    from treesnap.remote import Remotes
    from treesnap.remote.keys import KEY_SIZE, Secret
    from treesnap.remote.paper import lines_of

    with invocation.open(progress=False, needs_root=False) as handle:
        if check:
            typed = Secret.paper_key(_typed_paper())
            slots = Remotes(handle, lambda _: lambda: typed).keys(name)
            (info,) = (item for item in slots if item.is_used)
            invocation.output.result(
                "remote.key.paper",
                lambda: {**info._asdict(), "lines": None},
                [f"This paper opens the remote: key slot {info.id[:12]}"],
            )
            return
        made = os.urandom(KEY_SIZE)
        made_at_ns = handle.context.clock_ns()
        remotes = remotes_of(handle)
        info = remotes.add_key(name, lambda: Secret.paper_key(made))
        (url,) = (item.url for item in remotes.list() if name in (None, item.name))
    lines = lines_of(made)
    text = [
        f"treesnap paper key, made {time_text(made_at_ns).partition(' ')[0]}",
        f"for the remote {printable(url)}",
        f"key slot {info.id[:12]}",
        "",
        *lines,
        "",
        "With these four lines in $TREESNAP_REMOTE_KEY, 'snap remote add NAME URL' opens it.",
    ]
    invocation.output.result("remote.key.paper", lambda: {**info._asdict(), "lines": lines}, text)


def _typed_paper() -> bytes:
    """Returns the key of a paper that a person types, each line until its check is right."""
    from treesnap.remote.paper import LINE_COUNT, key_of, read_line

    if not is_terminal("stdin"):
        return key_of(sys.stdin.read(_TYPED_SIZE_MAX))
    key = b""
    for number in range(1, LINE_COUNT + 1):
        while (part := read_line(number, click.prompt(f"Line {number}", err=True))) is None:
            click.echo("That is mistyped", err=True)
        key += part
    return key


@key.command("export", examples=["snap remote key export backup > backup.keys"])
@remote_argument("name", required=False)
@pass_invocation
def export_keys(invocation: Invocation, *, name: str | None) -> None:
    """Print the key slots of an encrypted remote, as a text to be kept elsewhere.

    It opens nothing without a passphrase, a key or a paper. With 'snap remote add --keys FILE' it
    opens a remote that lost its key slots, and stores the one in use there again.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        text = remotes_of(handle).export_keys(name)
    invocation.output.result("remote.key.export", lambda: {"text": text}, text.split("\n"))


@key.command("remove", examples=["snap remote key remove backup 3f2a9c"])
@remote_argument("name")
@click.argument("key_id", metavar="KEY")
@pass_invocation
def remove_key(invocation: Invocation, *, name: str, key_id: str) -> None:
    """Remove a key slot: its secret opens the remote no longer.

    KEY is the beginning of an id that 'list' shows. A person who kept the secret and a
    copy of the slot can still read the remote.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        info = remotes_of(handle).remove_key(name, key_id)
    line = f"Removed the key slot {info.id[:12]}: {info.kind}"
    invocation.output.result("remote.key.remove", info._asdict, [line])


@key.command("rotate", examples=["snap remote key rotate backup"])
@remote_argument("name", required=False)
@pass_invocation
def rotate_keys(invocation: Invocation, *, name: str | None) -> None:
    """Encrypt what is stored from now on with new keys.

    A person who kept a removed secret and a copy of its slot cannot read that. The secret in use
    opens everything; other secrets open only what was stored before, until they are removed
    and added again. Nothing is written again.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        remotes = remotes_of(handle)
        info = remotes.rotate_keys(name)
        older = [item.id for item in remotes.keys(name) if item.generation < info.generation]
    line = f"Rotated the keys: new files are of generation {info.generation}"
    invocation.output.result(
        "remote.key.rotate", lambda: {**info._asdict(), "older": older}, [line]
    )
    if older:
        invocation.output.note(
            f"{count_text(len(older), 'key slot opens', 'key slots open')} only what was stored "
            "before: remove them, and add their secrets again"
        )


@key.command("change", examples=["snap remote key change backup"])
@remote_argument("name", required=False)
@click.option("--passphrase-file", metavar="FILE", help="Read the new passphrase from a file.")
@click.option("--passphrase-command", metavar="COMMAND", help="Run a command that prints it.")
@pass_invocation
def change_secret(
    invocation: Invocation,
    *,
    name: str | None,
    passphrase_file: str | None,
    passphrase_command: str | None,
) -> None:
    """Let a new passphrase alone open an encrypted remote, and keep out who has an old one.

    What is stored from now on has new keys. All other key slots are removed: add their secrets
    again. A passphrase that opens the remote already is refused. It comes from
    --passphrase-command, --passphrase-file, $TREESNAP_REMOTE_NEW_PASSPHRASE, or the terminal.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        info, removed = remotes_of(handle).change_secret(
            name, lambda: new_passphrase(passphrase_command, passphrase_file)
        )
    lines = [f"Changed the secret: new files are of generation {info.generation}"]
    lines += [f"Removed the key slot {item[:12]}" for item in removed]
    invocation.output.result(
        "remote.key.change", lambda: {**info._asdict(), "removed": removed}, lines
    )
