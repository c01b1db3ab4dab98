"""Stores of every released format stay readable, for ever.

``compat/v<format>.tar.xz`` holds a frozen store and what its snapshots restore to;
``formats/make_store.py`` made it. Owners are not compared: they are the machine's.
"""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import treesnap
from formats.independent_reader import (
    CHUNK,
    CHUNK_LIST,
    TREE,
    Block,
    Reader,
    blocks_of,
    unpacked,
    unsealed,
)
from formats.make_store import describe
from treesnap.core.model.entries import Entry, EntryKind
from treesnap.core.model.errors import UnsupportedFormat
from treesnap.core.store.store import FORMAT_VERSION

ARCHIVES = Path(__file__).parent
VERSIONS = range(2, FORMAT_VERSION + 1)
"""Version 1 was never released."""


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """One frozen store, unpacked."""

    path: Path
    manifest: dict[str, Any]
    handle: treesnap.Handle


SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Options of ``extractall``; Debian 12 has a Python that knows none."""


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"v{version}")
def frozen(request, tmp_path_factory) -> Frozen:
    """A frozen store of each format."""
    target = tmp_path_factory.mktemp("frozen")
    with tarfile.open(ARCHIVES / f"v{request.param}.tar.xz") as archive:
        archive.extractall(target, **SAFELY)
    manifest = json.loads((target / "manifest.json").read_text(encoding="ascii"))
    handle = treesnap.open(manifest["root"], target / "store")
    return Frozen(path=target / "store", manifest=manifest, handle=handle)


def comparable(paths: dict[str, Any]) -> dict[str, Any]:
    """Returns descriptions without directories above a scope, whose times no promise is about."""
    return {path: one for path, one in paths.items() if path}


def test_every_format_has_its_frozen_store():
    assert {path.name for path in ARCHIVES.glob("*.tar.*")} == {
        f"v{version}.tar.xz" for version in VERSIONS
    }


def test_the_history_is_as_it_was(frozen):
    listed = [[item.id, item.kind.value, item.pinned] for item in frozen.handle.list()]

    assert listed == frozen.manifest["history"]


@pytest.mark.needs("attributes")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("key", ["first", "second", "scoped", "exclusions", "incomplete"])
def test_a_frozen_snapshot_restores_to_what_was_captured(frozen, key, tmp_path):
    expected = frozen.manifest["snapshots"][key]
    snapshot = frozen.handle.resolve(key)

    frozen.handle.restore(key, to=tmp_path / "target", force=True, privileged=True)

    found = describe(os.fsencode(tmp_path / "target"))
    if snapshot.record.scope is not None:
        found = {path: one for path, one in found.items() if path in expected["paths"]}
    assert comparable(expected["paths"]) == comparable(found)
    assert (expected["id"], expected["root_hash"]) == (snapshot.id, snapshot.root_hash)
    assert expected["complete"] == snapshot.complete
    assert expected["left_out"] == sorted(
        os.fsdecode(item.path) for item in frozen.handle.skipped(key)
    )


def test_the_root_itself_comes_back_with_its_metadata(frozen, tmp_path):
    frozen.handle.restore("first", to=tmp_path / "target")

    found = describe(os.fsencode(tmp_path / "target"))[""]
    assert frozen.manifest["snapshots"]["first"]["paths"][""] == found


def test_listing_and_reading_agree_with_the_manifest(frozen):
    paths = frozen.manifest["snapshots"]["second"]["paths"]
    listed = {os.fsdecode(e.name): e for e in frozen.handle.ls("second", recursive=True)}

    text = b"".join(frozen.handle.cat("second", "empty directory"))

    assert set(listed) == set(comparable(paths))
    assert {path: kind_of(entry) for path, entry in listed.items()} == {
        path: one["kind"] for path, one in paths.items() if path
    }
    assert text == b"was a directory"


def test_a_frozen_store_verifies(frozen):
    result = frozen.handle.verify(read_data=True)

    assert result.problems == ()
    assert result.snapshots == len(frozen.manifest["history"])


def test_metadata_of_snapshots_is_as_it_was(frozen):
    second, scoped = frozen.handle.resolve("second"), frozen.handle.resolve("scoped")

    assert frozen.handle.resolve("first").state.tags == {"later": "yes"}
    assert second.label == "après"
    assert dict(second.record.tags) == {"empty": "", "tool": "make_store"}
    assert (second.record.session, second.record.step) == ("s-1", 7)
    assert second.record.parent == frozen.handle.resolve("first").id
    assert scoped.record.scope == (b"absent/path", b"names", b"script/inner")
    assert frozen.handle.resolve("exclusions").record.rules[1].patterns == (
        "*.o",
        "!keep.o",
        "latin-1 \udce9*",
    )


def test_a_reader_made_from_the_format_page_finds_the_same(frozen):
    reader = Reader(frozen.path)
    expected = {one["id"]: one for one in frozen.manifest["snapshots"].values()}

    found = {}
    for identity, record in reader.snapshots():
        files = reader.files(record)
        if "scope" in record:
            files = {
                path: one for path, one in files.items() if path in expected[identity]["paths"]
            }
        found[identity] = (reader.root_hash(record), files)

    assert {identity: found[identity] for identity in expected} == {
        identity: (one["root_hash"], one["paths"]) for identity, one in expected.items()
    }


def test_a_frozen_store_has_packs_and_blocks_of_every_form(frozen):
    packs = sorted((frozen.path / "packs").iterdir())
    blocks = [each for pack in packs for each in blocks_of(pack)]

    sealed = {pack.name for pack in packs if pack.read_bytes()[-16:-12] == b"TSFT"}
    assert 0 < len(sealed) < len(packs)
    assert {pack.name for pack in packs} >= set(frozen.manifest["packs_of_the_collection"]) != set()
    kinds = [{kind for kind, _ in objects} for _, objects in blocks]
    assert {TREE} in kinds
    assert {CHUNK_LIST} in kinds
    assert {TREE, CHUNK_LIST} in kinds
    assert not [mixed for mixed in kinds if CHUNK in mixed and mixed != {CHUNK}]
    forms = {(compression_of(block), len(objects) > 1) for block, objects in blocks}
    assert forms == {(0, False), (0, True), (1, False), (1, True)}
    assert max(block.raw_size for block, _ in blocks) == (256 << 10) + 1


def test_a_store_of_a_format_before_the_first_release_is_refused(frozen, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    about = json.loads((frozen.path / "format").read_bytes())
    about |= {"format": 1, "min_reader": 1, "min_writer": 1}
    (store / "format").write_text(json.dumps(about))
    handle = treesnap.open(tmp_path, store)

    for call, verb in ((handle.list, "reads"), (handle.create, "writes")):
        with pytest.raises(UnsupportedFormat, match=f"has format 1, and .* {verb} format 2"):
            call()

    assert os.listdir(store) == ["format"]


def test_a_reader_made_from_the_format_page_understands_the_index(frozen):
    reader = Reader(frozen.path)

    listed = {(kind, identity): place for kind, identity, place in reader.index_entries()}

    assert listed == reader.objects


def test_a_reader_made_from_the_format_page_understands_the_small_files(frozen):
    (root,) = (frozen.path / "roots").glob("*/")
    pinned = frozen.handle.resolve("first")

    history = unpacked(unsealed(root / "history", 8))

    assert unpacked(unsealed(root / "root", 7))["path"] == os.fsencode(frozen.manifest["root"])
    assert [len(history[key]) for key in ("undo", "redo")] == [1, 1]
    state = unpacked(unsealed(frozen.path / "states" / pinned.id, 4))
    assert (state["pinned"], state["tags"]) == (True, {"later": "yes"})
    assert unpacked(unsealed(frozen.path / "collector" / "state", 9))["epoch"] == 2


def compression_of(block: Block) -> int:
    """Returns how the bytes of a block are stored."""
    return block.pack.read_bytes()[block.offset + 4]


def kind_of(entry: Entry) -> str:
    """Returns an entry's kind as the manifest has it."""
    return EntryKind(entry.kind).name.lower()
