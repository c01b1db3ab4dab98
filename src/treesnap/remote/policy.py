"""The rules that a bucket needs for machines that deliver, read, push or collect.

    writer      writes inbox/, and does nothing else
    reader      reads and lists
    member      also writes packs/, commits/ and members/; nothing is ever removed with its
                credentials
    collector   also everything else that a command does

What a command writes and removes stands in two tables here; a test compares them with what the
commands really do. Rules are a second line of defence beside encryption: they hold against
a thief of a machine's credentials, and not against the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from treesnap.core.model.presentation import Record
from treesnap.remote.records import INBOX, Folder

if TYPE_CHECKING:
    from treesnap.remote.blobs.bucket import BucketUrl


class Role(StrEnum):
    """What a machine does with a remote."""

    WRITER = "writer"
    READER = "reader"
    MEMBER = "member"
    COLLECTOR = "collector"


WRITTEN = {
    Role.WRITER: (INBOX,),
    Role.READER: (),
    Role.MEMBER: (f"{Folder.COMMITS}/", "members/", f"{Folder.PACKS}/"),
    Role.COLLECTOR: (
        *(f"{folder}/" for folder in sorted(Folder)),
        "format",
        "keys/",
        "members/",
        "probe/",
        "state/",
    ),
}
"""Files, and beginnings of the names of files, that a role writes."""
REMOVED = {
    Role.WRITER: (),
    Role.READER: (),
    Role.MEMBER: (),
    Role.COLLECTOR: (
        *(f"{folder}/" for folder in sorted(Folder)),
        INBOX,
        "keys/",
        "probe/",
        "state/",
    ),
}
"""Beginnings of the names of files that a role removes."""

_ALLOWS = {
    Role.WRITER: "delivers with an invitation; reads and removes nothing",
    Role.READER: "lists histories, clones, verifies",
    Role.MEMBER: "also pushes; removes nothing",
    Role.COLLECTOR: (
        "also sets up, receives, prunes, collects garbage, changes keys, tries the server out"
    ),
}


class RolePolicy(Record):
    """The rules for one role."""

    role: Role
    allows: str
    """What machines with this role do, in words."""
    policy: Mapping[str, object] | None
    """A document for Amazon's IAM, and for servers that read the same; None elsewhere."""
    advice: tuple[str, ...]
    """Sentences: what has to be set where there is no such document, or beside it."""


def role_policies(
    url: str, roles: Iterable[Role], *, appends_only: bool = False
) -> tuple[RolePolicy, ...]:
    """Returns the rules for roles at an address. Asks no server; raises InvalidArgument.

    With ``appends_only`` a writer or a member cannot replace anything, which machines have to know:
    they are those that added the remote so.
    """
    from treesnap.remote.blobs.bucket import parse_bucket_url

    if url.startswith("rclone:"):
        return tuple(RolePolicy(role, _ALLOWS[role], None, _BY_RCLONE) for role in roles)
    if "://" not in url or url.startswith("ssh://"):
        return tuple(RolePolicy(role, _ALLOWS[role], None, _OF_DIRECTORIES[role]) for role in roles)
    bucket = parse_bucket_url(url)
    if bucket.scheme == "s3":
        return tuple(
            RolePolicy(
                role,
                _ALLOWS[role],
                _document(bucket, role, appends_only=appends_only),
                () if appends_only else _OF_S3[role],
            )
            for role in roles
        )
    advice = _OF_GOOGLE if bucket.scheme == "gs" else _OF_AZURE
    return tuple(
        RolePolicy(
            role, _ALLOWS[role], None, tuple(line.format(place=bucket) for line in advice[role])
        )
        for role in roles
    )


def _document(place: BucketUrl, role: Role, *, appends_only: bool) -> dict[str, object]:
    """Returns the document that allows what a role does, and nothing else."""
    partition = _partition(place.region or "")
    bucket = f"arn:{partition}:s3:::{place.bucket}"
    below = f"{_literal(place.prefix)}/" if place.prefix else ""

    def allow(action: str, names: Iterable[str]) -> dict[str, object]:
        return {
            "Effect": "Allow",
            "Action": f"s3:{action}",
            "Resource": [
                f"{bucket}/{below}{name}{'*' if name.endswith('/') or not name else ''}"
                for name in names
            ],
        }

    lists: dict[str, object] = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket}
    if below:
        lists["Condition"] = {"StringLike": {"s3:prefix": f"{below}*"}}
    statements = [] if role is Role.WRITER else [lists, allow("GetObject", [""])]
    if WRITTEN[role]:
        puts = allow("PutObject", WRITTEN[role])
        if appends_only and role in (Role.WRITER, Role.MEMBER):
            puts["Condition"] = {"Null": {"s3:if-none-match": "false"}}
        statements.append(puts)
    if REMOVED[role]:
        statements.append(allow("DeleteObject", REMOVED[role]))
    return {"Version": "2012-10-17", "Statement": statements}


def _partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _literal(prefix: str) -> str:
    """Returns a prefix without characters that mean something in a document."""
    return "".join(f"${{{letter}}}" if letter in "*?$" else letter for letter in prefix)


_OF_S3: Mapping[Role, tuple[str, ...]] = {
    Role.WRITER: (
        (
            "A writer can replace a file of the inbox whose name it knows: add the remote with "
            "--append-only, whose rules forbid that, and deliver with --append-only"
        ),
    ),
    Role.READER: (),
    Role.MEMBER: (
        (
            "A member can replace a file that is there: add the remote with --append-only, whose "
            "rules forbid that, or switch on the versioning of the bucket, with a lifecycle rule "
            "that removes noncurrent versions after some weeks"
        ),
    ),
    Role.COLLECTOR: (),
}
_OF_GOOGLE: Mapping[Role, tuple[str, ...]] = {
    Role.WRITER: (
        (
            "Grant roles/storage.objectCreator on the bucket {place.bucket}, on the condition that "
            "resource.name begins with projects/_/buckets/{place.bucket}/objects/ and the path of "
            "inbox/"
        ),
    ),
    Role.READER: ("Grant roles/storage.objectViewer on the bucket {place.bucket}",),
    Role.MEMBER: (
        "Grant roles/storage.objectViewer on the bucket {place.bucket}",
        (
            "Grant roles/storage.objectCreator there, on the condition that resource.name begins "
            "with projects/_/buckets/{place.bucket}/objects/ and the path of packs/ or of commits/"
        ),
    ),
    Role.COLLECTOR: ("Grant roles/storage.objectUser on the bucket {place.bucket}",),
}
_OF_AZURE: Mapping[Role, tuple[str, ...]] = {
    Role.WRITER: (
        (
            "Assign on the container {place.bucket} a role of your own with the data action "
            "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action, on the "
            "condition that the path of the blob is below inbox/"
        ),
    ),
    Role.READER: ("Assign Storage Blob Data Reader on the container {place.bucket}",),
    Role.MEMBER: (
        "Assign Storage Blob Data Reader on the container {place.bucket}",
        (
            "Assign a role of your own there with the data action "
            "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/add/action, on the "
            "condition that the path of the blob is below packs/ or commits/"
        ),
    ),
    Role.COLLECTOR: ("Assign Storage Blob Data Contributor on the container {place.bucket}",),
}
_BY_RCLONE = ("Give rclone credentials there that allow what the role does",)
_OF_DIRECTORIES: Mapping[Role, tuple[str, ...]] = {
    Role.WRITER: ("Let the user enter the directory, and read and write in its inbox alone",),
    Role.READER: ("Let the user read the directory and all below it, and write nothing there",),
    Role.MEMBER: (
        "Let the user read the directory and all below it, and write in packs and commits alone",
        (
            "Set the sticky bit of both with 'chmod +t', so that only the owner of a file removes "
            "it; files that a user wrote stay in that user's power"
        ),
    ),
    Role.COLLECTOR: ("Let the user own the directory and the directories in it",),
}
