"""Opening and making a store, and finding objects however little the index knows."""

from __future__ import annotations

import json
import os

import pytest

from blocks import ONE_OBJECT_SIZE
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import Corrupt, StoreMissing, UnsupportedFormat
from treesnap.core.store.layout import DIRECTORIES
from treesnap.core.store.store import FORMAT_VERSION, Store, format_problem
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

CHUNK = ObjectKind.CHUNK


def change_format(store, **changes) -> None:
    with open(store.layout.format) as file:
        value = json.load(file)
    with open(store.layout.format, "w") as file:
        json.dump(value | changes, file)


class TestOpening:
    def test_a_store_is_made_on_demand_only(self, fs, store_path):
        with pytest.raises(StoreMissing):
            Store.open(fs, store_path)
        assert not os.path.exists(store_path)

    def test_a_new_store_is_private_and_whole(self, store, store_path):
        assert os.stat(store_path).st_mode & 0o777 == 0o700
        assert sorted(os.listdir(store_path)) == sorted([*DIRECTORIES, "format", "made-here"])

    def test_a_store_that_was_half_made_is_completed(self, fs, store_path):
        os.makedirs(os.path.join(store_path, "packs"))

        Store.open(fs, store_path, create=True)

        assert sorted(os.listdir(store_path)) == sorted([*DIRECTORIES, "format", "made-here"])

    def test_a_directory_of_another_program_is_no_store(self, fs, store_path):
        os.makedirs(os.path.join(store_path, "photographs"))

        with pytest.raises(StoreMissing, match="not empty"):
            Store.open(fs, store_path, create=True)
        assert os.listdir(store_path) == ["photographs"]

    def test_a_format_file_is_json_that_may_be_laid_out_otherwise(self, fs, store, store_path):
        with open(store.layout.format, encoding="utf-8") as file:
            said = json.load(file)
        assert said["format"] == FORMAT_VERSION
        for text in (json.dumps(said), json.dumps({**said, "id": "another"}, indent=2)):
            with open(store.layout.format, "w", encoding="utf-8") as file:
                file.write(text)
            Store.open(fs, store_path, writing=True)

    @pytest.mark.parametrize("cut", [1, 2, 3, 40])
    def test_a_format_file_that_is_cut_short_is_damaged(self, fs, store, store_path, cut):
        os.truncate(store.layout.format, os.path.getsize(store.layout.format) - 1 - cut)

        with pytest.raises(Corrupt, match="format file"):
            Store.open(fs, store_path)

    def test_a_newer_format_is_refused_by_name(self, fs, store, store_path):
        change_format(store, format=9, min_reader=9, min_writer=9)

        with pytest.raises(UnsupportedFormat, match="format 9"):
            Store.open(fs, store_path)

    @pytest.mark.parametrize("needs", [{"min_reader": 3, "min_writer": 3}, {"min_writer": 3}])
    def test_a_store_that_a_newer_treesnap_took_over_is_not_damaged(
        self, fs, store, store_path, needs
    ):
        """Its ``format`` says in which version it was made."""
        change_format(store, **needs)

        with pytest.raises(UnsupportedFormat, match="asks for format 3"):
            Store.open(fs, store_path, writing=True)

    def test_the_format_before_the_first_release_is_refused_by_name(self, fs, store, store_path):
        change_format(store, format=1, min_reader=1, min_writer=1)

        with pytest.raises(UnsupportedFormat, match="format 1"):
            Store.open(fs, store_path)

    def test_a_format_that_may_only_be_read_is_only_read(self, fs, store, store_path):
        change_format(store, format=3, min_reader=2, min_writer=3)

        Store.open(fs, store_path)
        with pytest.raises(UnsupportedFormat, match="writes format 2"):
            Store.open(fs, store_path, writing=True)

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{}",
            "[]",
            '{"format": "1", "min_reader": 1}',
            '{"format": "1", "min_reader": "1", "min_writer": "1"}',
            "\xff",
        ],
    )
    def test_a_damaged_format_file_is_named(self, fs, store, store_path, content):
        with open(store.layout.format, "w", encoding="latin-1") as file:
            file.write(content)

        with pytest.raises(Corrupt, match="format file"):
            Store.open(fs, store_path)

    def test_what_a_format_file_says_is_judged_only_where_its_version_is_known(self, store):
        said = []
        for version in (2, 3):
            change_format(store, format=version, hash="another")
            with open(store.layout.format, "rb") as file:
                said.append(format_problem(file.read()))

        assert said == ["The format file has a wrong hash", None]


class TestFinding:
    def test_an_unknown_object_is_missing(self, store):
        assert not store.has(b"x" * 32)
        with pytest.raises(Corrupt, match="is missing"):
            store.get(CHUNK, b"x" * 32)

    def test_an_object_of_another_kind_is_missing(self, open_store, put):
        (identity,) = put(b"one")

        with pytest.raises(Corrupt):
            open_store().get(ObjectKind.TREE, identity)

    def test_an_object_is_there_although_the_first_place_in_the_index_is_gone(
        self, open_store, put
    ):
        (identity,) = put(b"one" * 10)
        store = open_store()
        place = store.index.find(identity)
        gone = place._replace(block=place.block._replace(pack_id=b"g" * 16))
        parts = list(store.index.parts)
        store.index.write_part([gone], {b"g" * 16: 10_000})
        store.index.write_part([place], {place.pack_id: 10_000})
        store.index.remove_parts(parts)

        assert store.index.find(identity) == gone
        assert store.has(identity)
        assert not store.has(identity, frozenset({place.pack_id}))

    def test_what_another_process_wrote_since_is_found(self, store, put):
        assert store.index.parts == {}
        (identity,) = put(b"one")

        assert store.get(CHUNK, identity) == b"one"

    def test_an_object_behind_what_the_index_covers_is_found(self, open_store, put):
        put(b"one")
        known = open_store()
        first = list(known.index.parts)
        (identity,) = put(b"two")
        store = open_store()
        store.index.remove_parts([name for name in store.index.parts if name not in first])

        assert open_store().get(CHUNK, identity) == b"two"

    def test_an_index_that_lies_is_no_hindrance(self, open_store, put):
        (identity,) = put(b"one")
        store = open_store()
        place = store.index.find(identity)
        store.index.remove_parts(list(store.index.parts))
        wrong = place._replace(start=place.start + 1)
        store.index.write_part([wrong], {place.pack_id: 10_000})

        assert open_store().get(CHUNK, identity) == b"one"

    def test_a_damaged_copy_is_passed_over_for_a_whole_one(self, open_store, put):
        (identity,) = put(b"one" * 10)
        store = open_store()
        (pack_id,) = store.packs.sizes()
        place = store.index.find(identity)
        twin = b"t" * 16
        with open(store.layout.pack(pack_id), "rb") as file:
            content = file.read()
        with open(store.layout.pack(twin), "wb") as file:
            file.write(content)
        copy = place._replace(block=place.block._replace(pack_id=twin))
        store.index.write_part([copy], {twin: len(content)})
        with open(store.layout.pack(pack_id), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")

        assert open_store().get(CHUNK, identity) == b"one" * 10

    @pytest.mark.parametrize("is_covered", [False, True])
    def test_packs_that_a_collection_removes_meanwhile_are_passed_over(
        self, store, store_path, put, is_covered
    ):
        """They are gone by the time that they are looked into, whatever the index says."""
        put(b"one")
        path = store.layout.pack(*store.packs.sizes())
        if not is_covered:
            store.index.remove_parts(list(store.index.parts))

        class Collected(WrappedFileSystem):
            def around(self, call: Call):
                if call.method == "open" and call.path == path and os.path.exists(path):
                    os.unlink(path)
                return call.proceed()

        with (
            Store.open(Collected(UnsyncedFileSystem()), store_path) as other,
            pytest.raises(Corrupt, match="is missing"),
        ):
            other.get(CHUNK, b"x" * 32)

        assert not os.path.exists(path)


class TestSound:
    def test_what_no_index_covers_counts_up_to_the_first_wrong_content(self, open_store, put):
        """It may have been torn by a power cut; what lies behind it is right, and is kept."""
        put(b"one")
        covered = open_store().index.covered()
        known = list(open_store().index.parts)
        (two,), (three,), (four,) = put(b"two" * 10), put(b"three" * 10), put(b"four" * 10)
        store = open_store()
        (pack_id,) = store.packs.sizes()
        wrong = store.index.find(three)
        right = [store.index.find(two), store.index.find(four)]
        store.index.remove_parts([name for name in store.index.parts if name not in known])
        with open(store.layout.pack(pack_id), "r+b") as file:
            file.seek(wrong.offset + ONE_OBJECT_SIZE)
            file.write(b"wrong")

        found = open_store().sound(pack_id)

        assert covered[pack_id] < found.covered == wrong.offset
        assert list(found.entries)[1:] == right
        assert not found.is_whole
