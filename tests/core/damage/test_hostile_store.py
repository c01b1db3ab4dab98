"""Crafted and damaged stores do no harm.

Every test looks afterwards whether anything outside the root was touched, and
whether every failure was one of our own, with a word on what is wrong.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forge import Forge
from frames import FRAMES, few_frames
from sampling import sized
from state import tree_state
from treesnap.core.codec.message import pack
from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.fs.peers import connected
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Totals
from treesnap.core.model.errors import Conflict, Corrupt, TreesnapError
from treesnap.core.model.ids import object_id
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.remote import Remotes

MISSING = ObjectId(b"\xee" * 32)
HUGE = (1 << 63) - 1


@pytest.fixture
def root(tmp_path) -> Path:
    """A directory that its owner wants to keep."""
    made = tmp_path / "places" / "root"
    made.mkdir(parents=True)
    (made / "kept").write_bytes(b"kept\n")
    (made / "directory").mkdir()
    (made / "directory" / "inner").write_bytes(b"inner\n")
    return made


@pytest.fixture
def forge(tmp_path, root) -> Forge:
    """An empty store in a hostile hand."""
    return Forge(tmp_path / "store", root)


@pytest.fixture(autouse=True)
def canary(tmp_path, root) -> Iterator[Path]:
    """A directory outside the root to which nothing may happen."""
    outside = tmp_path / "places" / "canary"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious\n")
    before = tree_state(outside)
    yield outside
    assert tree_state(outside) == before
    assert set(os.listdir(tmp_path / "places")) <= {"root", "canary", "target"}


READERS: dict[str, Callable[[Handle, Path], object]] = {
    "restore": lambda handle, target: handle.restore("latest"),
    "restore elsewhere": lambda handle, target: handle.restore("latest", to=target),
    "dry run": lambda handle, target: handle.restore("latest", dry_run=True),
    "list": lambda handle, target: handle.ls("latest", recursive=True),
    "diff": lambda handle, target: handle.diff("latest"),
    "find": lambda handle, target: handle.find("*"),
    "skipped": lambda handle, target: handle.skipped("latest"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("reader", ["restore", "restore elsewhere", "dry run", "list", "diff"])
@pytest.mark.parametrize(
    "name",
    [b"..", b".", b"../canary/evil", b"/evil", b"directory/evil", b"", b"evil\0", b"e" * 4096],
    ids=lambda name: repr(name[:20]),
)
def test_a_name_that_leads_elsewhere_is_refused(forge, root, tmp_path, name, reader):
    forge.snapshot(forge.tree(forge.file(name)))
    before = tree_state(root)

    with pytest.raises(Corrupt):
        READERS[reader](forge.handle(), tmp_path / "places" / "target")

    assert tree_state(root) == before
    assert not (tmp_path / "places" / "target").exists()


@pytest.mark.parametrize("kind", ["twice", "link first", "out of order"])
def test_a_name_that_is_a_link_and_a_directory_is_refused(forge, canary, tmp_path, kind):
    link = forge.symlink(b"a", os.fsencode(canary))
    directory = forge.directory(b"a", forge.tree(forge.file(b"precious")))
    rows = {
        "twice": [directory, directory],
        "link first": [link, directory],
        "out of order": [forge.file(b"b"), link, directory],
    }
    forge.snapshot(forge.tree(*rows[kind]))

    for reader in READERS.values():
        with pytest.raises(Corrupt):
            reader(forge.handle(), tmp_path / "places" / "target")


def test_a_directory_replaces_a_link_and_is_not_written_through_it(forge, root, canary):
    (root / "a").symlink_to(canary)
    tree = forge.tree(forge.file(b"precious", b"overwritten"))
    forge.snapshot(forge.tree(forge.directory(b"a", tree)))

    forge.handle().restore("latest")

    assert not (root / "a").is_symlink()
    assert (root / "a" / "precious").read_bytes() == b"overwritten"


def test_a_link_with_any_target_is_made_and_never_followed(forge, root, canary):
    forge.snapshot(
        forge.tree(forge.symlink(b"a", b"../canary"), forge.symlink(b"b", b"a/precious"))
    )

    forge.handle().restore("latest")
    forge.handle().create()
    forge.handle().restore("latest~1")

    assert os.readlink(root / "a") == "../canary"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (EntryKind.DIRECTORY, MISSING),
        (EntryKind.FILE, (0, MISSING, 5)),
        (EntryKind.FILE, (1, MISSING, 5)),
    ],
    ids=["tree", "chunk", "chunk list"],
)
def test_what_is_missing_is_named_and_harms_no_other_snapshot(forge, root, kind, content):
    forge.snapshot(forge.tree(forge.file(b"good")), name="good")
    size = content[2] if kind == EntryKind.FILE else 0
    bad = Entry(b"bad", int(kind), 0o644, 0, 0, 0, size, content, None)
    identity = forge.snapshot(forge.tree(bad), name="bad")
    handle = forge.handle()
    before = tree_state(root)

    with pytest.raises(Corrupt, match=MISSING.hex()):
        handle.restore("bad")

    assert tree_state(root) == before
    (problem,) = handle.verify().problems
    assert (problem.where, problem.snapshot_ids) == (MISSING.hex(), (identity,))
    handle.restore("good")
    assert os.listdir(root) == ["good"]


@pytest.mark.parametrize("kind", [ObjectKind.TREE, ObjectKind.CHUNK])
def test_an_object_that_is_not_what_its_id_says_is_refused(forge, root, kind):
    lie = object_id(kind, b"another")
    if kind == ObjectKind.TREE:
        forge.put(kind, pack((1, Totals(), 0, (forge.file(b"a"),))), lie)
        forge.snapshot(forge.directory(b"", lie).tree_id)
    else:
        forge.put(kind, b"content", lie)
        forge.snapshot(forge.tree(Entry(b"a", 1, 0o644, 0, 0, 0, 7, (0, lie, 7), None)))
    before = tree_state(root)

    with pytest.raises(Corrupt, match="identity"):
        forge.handle().restore("latest")

    assert tree_state(root) == before


def test_file_content_is_never_read_as_a_directory(forge, root):
    """The index says tree, the block says chunk, and the bytes are those of a tree."""
    content = pack((1, Totals(), 0, (forge.file(b"a"),)))
    identity = forge.put(ObjectKind.CHUNK, content)
    path = forge.write_pack()
    forge.snapshot(identity)
    size = (path.stat().st_size - 16, len(content) + 1)
    pack_id = bytes.fromhex(path.name)
    for offset in range(16, 400):
        forge.write_index(
            [IndexEntry(identity, Block(pack_id, offset, *size), 0, len(content), 2)],
            {pack_id: 1 << 40},
        )

    with pytest.raises(Corrupt):
        forge.handle().restore("latest")


def test_depth_is_walked_without_recursion(forge):
    levels = sized(FRAMES + 50, 3000)
    tree = forge.tree(forge.file(b"bottom"))
    for _ in range(levels):
        tree = forge.tree(forge.directory(b"d", tree))
    forge.snapshot(tree)
    handle = forge.handle()

    with few_frames():
        assert len(handle.ls("latest", recursive=True)) == levels + 1
        assert handle.restore("latest", dry_run=True).created == levels + 1
        assert handle.verify(read_data=True).problems == ()
        assert len(handle.find("bottom")) == 1


def test_pages_inside_pages_are_refused(forge, tmp_path):
    tree = forge.tree(forge.file(b"a"))
    for _ in range(2000):
        tree = forge.tree((b"a", tree, 1), level=1)
    forge.snapshot(tree)

    for name, reader in READERS.items():
        with pytest.raises(Corrupt, match="a page has pages"):
            pytest.fail(f"{name} took {reader(forge.handle(), tmp_path / 'places' / 'target')}")


def test_totals_that_lie_are_no_error_of_arithmetic(forge, root):
    tree = forge.tree(forge.file(b"a"), totals=(HUGE,) * 6)
    inner = [forge.directory(b"%d" % number, tree) for number in range(3)]
    forge.snapshot(forge.tree(*inner, totals=(HUGE,) * 6))

    forge.handle().restore("latest", ["0", "1", "2"], dry_run=True)
    forge.handle().restore("latest", ["0/a", "1", "2"])

    assert sorted(os.listdir(root)) == ["0", "1", "2", "directory", "kept"]


@pytest.mark.parametrize(
    "group", [(b"a", b"absent"), (b"a", b"d"), (b"d", b"d/x"), (b"a", b"b", b"other/name")]
)
def test_hard_links_that_lie_stay_inside_the_root(forge, root, group):
    tree = forge.tree(forge.file(b"x"))
    table = pack(group)
    links = (0, forge.put(ObjectKind.CHUNK, table), len(table))
    forge.snapshot(
        forge.tree(forge.file(b"a"), forge.file(b"b"), forge.directory(b"d", tree)), links=links
    )

    forge.handle().restore("latest")

    assert sorted(os.listdir(root)) == ["a", "b", "d"]


def test_rules_that_are_no_patterns_are_refused_or_harmless(forge, root):
    rules = (IgnoreRules(b"", ("[", "!", "\\", "***", "a" * 5000, "\n", "/", "\udcff")),)
    forge.snapshot(forge.tree(forge.file(b"a")), rules=rules)

    try:
        forge.handle().restore("latest")
    except TreesnapError:
        assert (root / "kept").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"mtime_ns": -(1 << 63)},
        {"mtime_ns": HUGE},
        {"uid": (1 << 32) - 2, "gid": (1 << 32) - 2},
        {"mode": 0o7777},
        {"kind": 6, "size": 0, "content": ((1 << 31) - 1,) * 2},
        {"kind": 3, "size": 0, "content": b"t" * 65536},
        {
            "xattrs": (
                (b"no namespace", b""),
                (b"system.posix_acl_access", b"x"),
                (b"user.\n", b"x"),
            )
        },
        {"xattrs": ((b"user.long", bytes(4000)), (b"user.longer", bytes(100_000)))},
        {"name": b"n" * 4000},
    ],
    ids=",".join,
)
def test_metadata_at_its_limits_is_put_back_or_nothing_is(forge, root, change):
    forge.snapshot(forge.tree(forge.file(b"a")._replace(**change)))
    before = tree_state(root)

    try:
        forge.handle().restore("latest")
    except TreesnapError:
        assert tree_state(root) == before
    else:
        assert len(os.listdir(root)) == 1


def test_a_conflicting_path_is_reported_once_the_tree_is_as_before(forge, root):
    """A directory should come where a skipped name forbids it."""
    (root / ".snapignore").write_bytes(b"private\n")
    (root / "a").mkdir()
    (root / "a" / "private").write_bytes(b"mine\n")
    forge.snapshot(forge.tree(forge.file(b"a")))
    before = tree_state(root)

    with pytest.raises(TreesnapError) as caught:
        forge.handle().restore("latest")

    assert not isinstance(caught.value, Conflict)
    assert tree_state(root) == before


@pytest.mark.parametrize("name", ["temporary", "slots", "pending", "index", "packs", "snapshots"])
def test_a_store_that_leads_elsewhere_is_refused(forge, canary, name):
    forge.snapshot(forge.tree(forge.file(b"a")))
    (forge.store / name).rename(forge.store / "moved")
    (forge.store / name).symlink_to(canary)

    for action in (Handle.create, lambda handle: handle.restore("latest"), Handle.gc):
        with pytest.raises(Corrupt, match="is not a directory"):
            action(forge.handle())


@pytest.mark.parametrize("name", ["roots", "snapshots"])
def test_a_corner_of_a_root_that_leads_elsewhere_is_refused(forge, canary, name):
    corner = forge.store / name / forge.root_id
    if corner.exists():
        corner.rename(forge.store / "moved")
    corner.symlink_to(canary)

    with pytest.raises(Corrupt, match="is not a directory"):
        forge.handle().create()


@pytest.mark.parametrize("name", ["remotes", "fork-server"])
def test_a_part_that_is_made_later_is_not_made_elsewhere(forge, tmp_path, canary, name):
    (forge.store / name).symlink_to(canary)
    remotes = Remotes(forge.handle())

    for action in (
        lambda: remotes.add("copy", str(tmp_path / "remote"), encrypted=False),
        forge.handle().create,
        forge.handle().gc,
    ):
        with pytest.raises(Corrupt, match="is a symbolic link"):
            action()


@pytest.mark.needs("notices")
def test_a_watcher_that_leads_elsewhere_is_refused(forge, canary):
    watch = forge.write_root_file("config.toml", b"").with_name("watch")
    watch.symlink_to(canary)
    handle = forge.handle()

    for action in (handle.create, handle.status, handle.watch().__enter__, handle.root_forget):
        with pytest.raises(Corrupt, match="is a symbolic link"):
            action()


@pytest.mark.needs("companions")
@pytest.mark.parametrize("link", ["fork-server", "fork-server/socket"])
def test_nothing_is_sent_to_a_server_elsewhere(forge, tmp_path, link):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (forge.store / link).parent.mkdir(exist_ok=True)
    (forge.store / link).symlink_to(elsewhere / "socket" if "/" in link else elsewhere)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(elsewhere / "socket"))
        server.listen()
        server.setblocking(False)

        with pytest.raises((NotADirectoryError, ConnectionRefusedError)):
            connected(str(forge.store / "fork-server"))

        with pytest.raises(BlockingIOError):
            server.accept()


def test_nothing_is_asked_of_a_watcher_elsewhere(forge, tmp_path):
    forge.snapshot(forge.tree(forge.file(b"a")))
    watch = forge.write_root_file("config.toml", b"").with_name("watch")
    watch.mkdir()
    (watch / "socket").symlink_to(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        server.setblocking(False)

        forge.handle().status()

        with pytest.raises(BlockingIOError):
            server.accept()


def test_what_was_read_of_a_remote_leads_nowhere_else(forge, canary, tmp_path):
    remotes = Remotes(forge.handle())
    remotes.add("copy", str(tmp_path / "remote"), encrypted=False)
    forge.handle().create()
    remotes.push("copy")
    (cache,) = (forge.store / "remotes").glob(".cache-*")
    cache.rename(cache.with_name("moved"))
    cache.symlink_to(canary)

    for action in (remotes.push, remotes.fetch, remotes.verify, remotes.remove):
        with pytest.raises(Corrupt, match="is a symbolic link"):
            action("copy")


def test_files_of_others_in_the_store_stay(forge):
    (forge.store / "temporary" / "notes.txt").write_bytes(b"mine\n")

    forge.handle().create()

    assert (forge.store / "temporary" / "notes.txt").exists()


def test_a_history_that_has_no_number_left_is_not_continued_in_silence(forge):
    forge.snapshot(forge.tree())
    (path,) = (forge.store / "snapshots" / forge.root_id).iterdir()
    path.rename(path.with_name("f" * 16 + path.name[16:]))

    with pytest.raises(Corrupt, match="impossible number"):
        forge.handle().create()
