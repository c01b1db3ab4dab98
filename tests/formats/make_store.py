"""Makes the store of the current format that is kept for ever, and says what is in it.

    python tests/formats/make_store.py TARGET

makes ``TARGET/tree``, captures it in several states into ``TARGET/store``, and
writes ``TARGET/manifest.json``: what each snapshot restores to, found by looking
at the tree, not at the store. Then it packs store and manifest into
``TARGET/v<format>.tar.xz``, which is checked in beside this script. It needs no
privileges; one file is unreadable on purpose, so it is not for the superuser.

Once a version is released its archive is never made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import socket
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import treesnap
from treesnap.core.model.ids import expanded
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.listing import retag
from treesnap.core.store import packs, writer
from treesnap.core.store.store import FORMAT_VERSION

SECOND_NS = 1_700_000_000_000_000_000
PAGED_ENTRIES = 4200
HOLE_SIZE = 4096
SPLITTING_PAGE = 880
"""A number whose page is a chunk at which lists end as early as they may."""
PACK_SIZE = 64 << 10
"""Packs are sealed much earlier than usual, so that sealed ones exist and are small."""


def describe(top: bytes) -> dict[str, Any]:
    """Returns everything that a restore of a tree must bring back, by path."""
    found: dict[str, Any] = {}
    inodes: dict[int, list[str]] = {}
    pending = [b""]
    while pending:
        path = pending.pop()
        full = os.path.join(top, path) if path else top
        status = os.lstat(full)
        name = os.fsdecode(path)
        found[name] = _describe_one(full, status)
        if stat.S_ISDIR(status.st_mode):
            pending += [os.path.join(path, child) for child in os.listdir(full)]
        elif status.st_nlink > 1:
            inodes.setdefault(status.st_ino, []).append(name)
    for names in inodes.values():
        if len(names) > 1:
            found[min(names)]["links"] = sorted(names)
    return dict(sorted(found.items()))


def _describe_one(full: bytes, status: os.stat_result) -> dict[str, Any]:
    kind = stat.S_IFMT(status.st_mode)
    one: dict[str, Any] = {"mode": stat.S_IMODE(status.st_mode), "mtime_ns": status.st_mtime_ns}
    if kind == stat.S_IFDIR:
        one["kind"] = "directory"
    elif kind == stat.S_IFLNK:
        one |= {"kind": "symlink", "target": os.fsdecode(os.readlink(full))}
        del one["mode"]
    elif kind == stat.S_IFIFO:
        one["kind"] = "fifo"
    elif kind == stat.S_IFREG:
        one |= {"kind": "file", "size": status.st_size, "sha256": _digest(full)}
    else:
        one["kind"] = "other"
    xattrs = {
        name: os.getxattr(full, name, follow_symlinks=False).hex()
        for name in os.listxattr(full, follow_symlinks=False)
        if name.startswith("user.")
    }
    return one | ({"xattrs": xattrs} if xattrs else {})


def _digest(full: bytes) -> str | None:
    try:
        with open(full, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except PermissionError:
        return None


class Maker:
    """Makes the tree, and changes it between captures."""

    def __init__(self, top: bytes) -> None:
        self._top = top
        self._number = 0

    def path(self, name: bytes) -> bytes:
        """Returns the real path of a name in the tree."""
        return os.path.join(self._top, name)

    def date(self, name: bytes) -> None:
        """Gives a name a time of its own, in nanoseconds."""
        self._number += 1
        moment = SECOND_NS + self._number * 1_000_000_007
        os.utime(self.path(name), ns=(moment, moment), follow_symlinks=False)

    def directory(self, name: bytes, mode: int = 0o755) -> None:
        """Makes a directory."""
        os.mkdir(self.path(name))
        os.chmod(self.path(name), mode)

    def file(self, name: bytes, content: bytes, mode: int = 0o644) -> None:
        """Makes a file or writes it anew."""
        with open(self.path(name), "wb") as file:
            file.write(content)
        os.chmod(self.path(name), mode)
        self.date(name)

    def sparse(self, name: bytes, size: int, pieces: dict[int, bytes]) -> None:
        """Makes a file with holes."""
        with open(self.path(name), "wb") as file:
            for offset, content in pieces.items():
                os.pwrite(file.fileno(), content, offset)
            os.truncate(file.fileno(), size)
        self.date(name)

    def settle(self) -> None:
        """Gives every directory its final time."""
        for top, _, _ in os.walk(self._top, topdown=False):
            self.date(os.path.relpath(top, self._top))

    def populate(self) -> None:
        """Makes the first state of the tree."""
        self._plain()
        self._names()
        self._large()
        self._links()
        self.directory(b"pages")
        for number in range(PAGED_ENTRIES):
            os.symlink(b"t", self.path(b"pages/%04d" % number))
            moment = SECOND_NS
            os.utime(self.path(b"pages/%04d" % number), ns=(moment, moment), follow_symlinks=False)
        self.settle()

    def _plain(self) -> None:
        self.file(b"empty", b"")
        self.file(b"one byte", b"1")
        self.file(b"script", b"#!/bin/sh\nexit 0\n", 0o755)
        self.file(b"sixty-four", bytes(range(64)))
        self.file(b"sticky bits", b"setuid, setgid", 0o6711)
        self.file(b"read-only", b"nobody writes here\n", 0o444)
        self.directory(b"empty directory")
        self.directory(b"shared", 0o1777)
        self.directory(b"closed", 0o555)
        os.mkfifo(self.path(b"fifo"), 0o640)
        self.date(b"fifo")
        deep = b"d"
        self.directory(deep)
        for level in range(12):
            deep += b"/level %d" % level
            self.directory(deep)
        self.file(deep + b"/bottom", b"deep down")
        self.file(b"attributes", b"with attributes")
        os.setxattr(self.path(b"attributes"), "user.treesnap", b"\0binary\xff")
        os.setxattr(self.path(b"attributes"), "user.empty", b"")
        os.setxattr(self.path(b"d"), "user.of a directory", b"yes")
        self.date(b"attributes")

    def _names(self) -> None:
        self.directory(b"names")
        for name in (b"\xff\xfe not UTF-8", b"new\nline", b"\xc3\xa9t\xc3\xa9", b"-rf", b" ", b"*"):
            self.file(b"names/" + name, name)
        self.file(b"names/" + b"n" * 255, b"as long as a name can be")

    def _large(self) -> None:
        random = expanded(b"treesnap compatibility", 20_000)
        self.file(b"just one chunk", (random * 14)[: 256 << 10])
        self.file(b"more than one chunk", (random * 14)[: (256 << 10) + 1])
        base = expanded(b"treesnap chunk list 54", 1024)
        lines = (b"%08d" % number + base[8:] for number in range(2048))
        self.file(b"chunk list", b"".join(lines))
        self.sparse(
            b"sparse", 32 << 20, {0: b"begin", 5 << 20: b"middle" * 2000, (32 << 20) - 3: b"end"}
        )
        self.sparse(b"only a hole", 32 << 20, {})
        page = b"%08d" % SPLITTING_PAGE * (HOLE_SIZE // 8)
        extents = range(17 * 32 + 7)
        self.sparse(
            b"lists of lists",
            2 * HOLE_SIZE * len(extents),
            {2 * HOLE_SIZE * number: page for number in extents},
        )

    def _links(self) -> None:
        os.symlink(b"script", self.path(b"link"))
        os.symlink(b"/nowhere/\xff", self.path(b"dangling link"))
        self.file(b"linked a", b"three names\n")
        os.link(self.path(b"linked a"), self.path(b"linked b"))
        os.link(self.path(b"linked a"), self.path(b"d/linked c"))
        os.link(self.path(b"link"), self.path(b"link too"), follow_symlinks=False)
        self.date(b"link")
        self.date(b"dangling link")

    def change(self) -> None:
        """Changes the tree in many ways."""
        with open(self.path(b"chunk list"), "r+b") as file:
            os.pwrite(file.fileno(), b"an edit in the middle", 1_000_000)
        self.date(b"chunk list")
        os.unlink(self.path(b"one byte"))
        os.rmdir(self.path(b"empty directory"))
        self.file(b"empty directory", b"was a directory")
        os.unlink(self.path(b"script"))
        self.directory(b"script")
        self.file(b"script/inner", b"was a file")
        os.chmod(self.path(b"read-only"), 0o600)
        os.unlink(self.path(b"linked b"))
        self.file(b"linked b", b"a file of its own")
        os.unlink(self.path(b"pages/2000"))
        self.file(b"pages/2000 and a half", b"between")
        os.removexattr(self.path(b"attributes"), "user.empty")
        self.settle()

    def exclude(self) -> None:
        """Adds what a capture leaves out, and removes what takes long to restore."""
        shutil.rmtree(self.path(b"pages"))
        self.directory(b"project")
        self.file(b"project/.snapignore", b"# built\n*.o\n!keep.o\nlatin-1 \xe9*\n")
        self.file(b"project/keep.o", b"kept")
        for number in range(2):
            self.file(b"project/noise %d" % number, expanded(b"noise %d" % number, 200))
        self.file(b"project/main.o", b"left out")
        self.file(b"project/latin-1 \xe9t\xe9", b"left out too")
        self.file(b"cache.tmp", b"left out by the call")
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.fsdecode(self.path(b"socket")))
        self.settle()


def is_inside(path: str, tops: list[str]) -> bool:
    """Returns whether a path is one of the given ones or lies below one."""
    return any(path == top or path.startswith(top + "/") for top in tops)


def make(target: str) -> None:
    """Makes tree, store and manifest."""
    tree, store = os.path.join(target, "tree"), os.path.join(target, "store")
    os.mkdir(tree)
    maker = Maker(os.fsencode(tree))
    handle = treesnap.Handle(context_at(root=tree, store_path=store, clock_ns=_clock()))
    snapshots: dict[str, Any] = {}

    def create(key: str, paths: list[str], left_out: list[str], **fields: Any) -> None:
        result = handle.create(paths or None, name=key, **fields)
        present = describe(os.fsencode(tree))
        snapshots[key] = {
            "id": result.snapshot.id,
            "root_hash": result.snapshot.root_hash,
            "complete": result.snapshot.complete,
            "left_out": left_out,
            "paths": {
                path: one
                for path, one in present.items()
                if path not in left_out and (not paths or is_inside(path, paths))
            },
        }

    maker.populate()
    create("first", [], [])
    handle.pin("first")
    retag(handle.context, "first", lambda tags: {**tags, "later": "yes"})
    maker.change()
    tags = {"tool": "make_store", "empty": ""}
    create("second", [], [], label="après", tags=tags, session="s-1", step=7)
    create(
        "scoped",
        ["absent/path", "names", "script/inner"],
        [],
        options=treesnap.CreateOptions(allow_absent=True),
    )
    maker.exclude()
    left_out = ["cache.tmp", "project/latin-1 \udce9t\udce9", "project/main.o", "socket"]
    create("exclusions", [], left_out, options=treesnap.CreateOptions(exclude=["*.tmp"]))
    handle.restore("first")
    handle.restore("second")
    handle.undo()
    maker.file(b"garbage", expanded(b"garbage", 70_000))
    handle.delete(handle.create().snapshot.id)
    os.unlink(maker.path(b"garbage"))
    shutil.rmtree(maker.path(b"pages"))
    maker.file(b"secret", b"unreadable", 0)
    maker.settle()
    create("incomplete", [], ["secret", "socket"])
    before = set(os.listdir(os.path.join(store, "packs")))
    handle.gc()
    rewritten = sorted(set(os.listdir(os.path.join(store, "packs"))) - before)
    _write_manifest(handle, target, snapshots, rewritten)


def _clock() -> Callable[[], int]:
    moments = iter(range(SECOND_NS + 1_000_000_000_000_000, 1 << 62, 60_000_000_000))
    return lambda: next(moments)


def _write_manifest(
    handle: treesnap.Handle, target: str, snapshots: dict[str, Any], rewritten: list[str]
) -> None:
    listed = handle.list()
    manifest = {
        "format": FORMAT_VERSION,
        "root": handle.root,
        "history": [[item.id, item.kind.value, item.pinned] for item in listed],
        "snapshots": snapshots,
        "packs_of_the_collection": rewritten,
    }
    text = json.dumps(manifest, indent=1) + "\n"
    Path(target, "manifest.json").write_text(text, encoding="ascii")


def pack(target: str) -> str:
    """Packs store and manifest; returns the archive's path."""
    archive = os.path.join(target, f"v{FORMAT_VERSION}.tar.xz")

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        return member

    with tarfile.open(archive, "w:xz", preset=9) as file:
        for name in ("manifest.json", "store"):
            file.add(os.path.join(target, name), arcname=name, filter=anonymous)
    return archive


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="a directory that does not exist yet")
    target = os.path.realpath(parser.parse_args().target)
    if os.geteuid() == 0:
        sys.exit("This script does not run as the superuser, who can read everything")
    os.umask(0o022)
    os.mkdir(target)
    with (
        mock.patch.object(packs, "PACK_SIZE_TARGET", PACK_SIZE),
        mock.patch.object(writer, "BATCH_SIZE", PACK_SIZE // 2),
    ):
        make(target)
    sys.stdout.write(pack(target) + "\n")
    shutil.rmtree(os.path.join(target, "tree"), ignore_errors=True)


if __name__ == "__main__":
    main()
