"""``snap remote invite`` and ``members``: which machines a remote lets do what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import SnapGroup, command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.core.model.errors import ErrorCode, InvalidArgument, Refused, printable
from treesnap.core.model.quantities import count_text
from treesnap.remote.commands.completion import remote_argument
from treesnap.remote.commands.secret import new_passphrase, remotes_of

if TYPE_CHECKING:
    from treesnap.remote import MemberInfo, Revoked
    from treesnap.remote.invitation import Invitation
    from treesnap.remote.keys import Secret

INVITATION_VARIABLE = "TREESNAP_REMOTE_INVITATION"
_INVITED = ("member", "collector")


def given_invitation() -> Invitation:
    """Returns the invitation in the environment; raises Refused where there is none."""
    from treesnap.remote.invitation import Invitation

    text = os.environ.get(INVITATION_VARIABLE)
    if not text:
        raise Refused(
            f"An invitation is needed: ${INVITATION_VARIABLE} is not set",
            code=ErrorCode.REMOTE_LOCKED,
        )
    return Invitation.from_text(text)


@command(
    "invite",
    examples=[
        "snap remote invite backup --role member",
        "snap remote invite backup --writer",
    ],
)
@remote_argument("name", required=False)
@click.option("--role", type=click.Choice(_INVITED), help="Let the machine read and push, or more.")
@click.option("--writer", is_flag=True, help="Let it deliver snapshots, and read nothing.")
@pass_invocation
def invite(invocation: Invocation, *, name: str | None, role: str | None, writer: bool) -> None:
    """Let a machine use an encrypted remote without a passphrase.

    A member reads and pushes, a collector also deletes and collects, and a writer delivers. The
    invitation is printed. It is a secret: it goes into $TREESNAP_REMOTE_INVITATION of that machine,
    for 'snap remote add --invited', or for 'snap remote deliver'. Give each machine one of its own.
    """
    from treesnap.remote.records import MemberRole

    if writer == (role is not None):
        raise InvalidArgument("Give either --role ROLE or --writer")
    asked = MemberRole[(role or "writer").upper()]
    with invocation.open(progress=False, needs_root=False) as handle:
        made = remotes_of(handle).invite(name, asked)
    identity = made.machine_id.hex()
    invocation.output.note(f"Invited the {asked.words} {identity}")
    invocation.output.result(
        "remote.invite",
        lambda: {"id": identity, "role": asked.words, "invitation": made.to_text()},
        [made.to_text()],
    )


@click.group("members", cls=SnapGroup)
def members() -> None:
    """List the machines of an encrypted remote, demote them, and revoke them.

    An owner has a secret that opens the remote. Others were invited: a collector deletes and
    collects, a member pushes, a writer delivers.
    """


@members.command("list", prints_only=True, examples=["snap remote members list backup"])
@remote_argument("name", required=False)
@pass_invocation
def list_members(invocation: Invocation, *, name: str | None) -> None:
    """List the machines of an encrypted remote.

    Columns: id, role, histories, and whether it is this machine.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        listed = remotes_of(handle).members(name)
    invocation.output.result(
        "remote.members.list", lambda: {"members": listed}, [_line(item) for item in listed]
    )


def _line(item: MemberInfo) -> str:
    names = "  " + ", ".join(map(printable, item.histories)) if item.histories else ""
    own = "  (this machine)" if item.is_own else ""
    return f"{item.id}  {item.role:9}{names}{own}".rstrip()


@members.command("demote", examples=["snap remote members demote backup laptop"])
@remote_argument("name")
@click.argument("machine", metavar="MACHINE")
@pass_invocation
def demote(invocation: Invocation, *, name: str, machine: str) -> None:
    """Make a collector a member: it deletes and collects no more.

    MACHINE is the beginning of an id that 'list' shows, or the name of a computer or a history. A
    role never rises: to make a member a collector, invite it again.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        member = remotes_of(handle).demote(name, machine)
    line = f"The machine {member.id} is a {member.role} now"
    invocation.output.result("remote.members.demote", member._asdict, [line])


@members.command("revoke", examples=["snap remote members revoke backup laptop"])
@remote_argument("name")
@click.argument("machine", metavar="MACHINE")
@click.option("--passphrase-file", metavar="FILE", help="Read a new passphrase from a file.")
@click.option("--passphrase-command", metavar="COMMAND", help="Run a command that prints it.")
@pass_invocation
def revoke(
    invocation: Invocation,
    *,
    name: str,
    machine: str,
    passphrase_file: str | None,
    passphrase_command: str | None,
) -> None:
    """Take a machine off the list: what it pushes from now on counts for nothing.

    What it pushed before stays. If it could read, what is stored from now on has new keys, which
    each other machine that was invited gets. An owner knows a secret, so to revoke one takes a new
    passphrase, which alone opens the remote then. It comes from --passphrase-command,
    --passphrase-file, $TREESNAP_REMOTE_NEW_PASSPHRASE, or the terminal.
    """
    from treesnap.remote.connection import PossibleSecret

    def secret() -> Secret:
        return new_passphrase(passphrase_command, passphrase_file)

    is_set = passphrase_command is not None or passphrase_file is not None
    with invocation.open(progress=False, needs_root=False) as handle:
        done = remotes_of(handle).revoke(
            name, machine, secret if is_set else PossibleSecret(secret)
        )
    invocation.output.result(
        "remote.members.revoke",
        lambda: {
            **done.member._asdict(),
            "generation": done.generation,
            "removed": done.removed,
        },
        list(_revoked_lines(done)),
    )


def _revoked_lines(done: Revoked) -> list[str]:
    """Returns what becomes of what a machine pushed, and what it can read."""
    lines = [f"Revoked the {done.member.role} {done.member.id}"]
    if done.generation is None:
        return [*lines, "What it delivers counts no more; what was received stays"]
    lines += [
        "What it pushed before stays, and what it pushes from now on counts for nothing",
        f"It cannot read what is stored from now on: that has keys of generation {done.generation}",
        "It can read what was stored before, until its credentials are changed, and what it copied",
    ]
    if done.removed:
        slots = count_text(len(done.removed), "key slot")
        lines.append(f"Removed {slots}: other owners need the new passphrase")
    return lines
