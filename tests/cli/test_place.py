"""Which root and which store a command works on is never a guess."""

from __future__ import annotations

import shutil

import pytest

import treesnap

READING = [
    ["list"],
    ["list", "--all"],
    ["status"],
    ["stats"],
    ["config"],
    ["doctor"],
    ["gc"],
    ["verify"],
    ["prune"],
    ["find", "*"],
    ["diff"],
    ["show", "latest"],
    ["ls", "latest"],
    ["cat", "latest", "file"],
    ["restore", "latest"],
    ["undo"],
    ["redo"],
    ["delete", "latest"],
    ["pin", "latest"],
    ["watch", "--status"],
    ["watch", "--stop"],
    ["plan", "list"],
    ["plan", "show", "latest"],
    ["session", "list", "--session-id", "s"],
]
READS = pytest.mark.parametrize("words", READING, ids=" ".join)


class TestStoreThatIsNotThere:
    @READS
    def test_that_was_named_is_not_found(self, snap, store, words):
        for options in ([], ["--store", str(store)]):
            result = snap(*options, *words, "--json")

            assert (result.code, result.json["code"]) == (5, "store-not-found")
            assert result.json["path"] == str(store)
        assert not store.exists()

    @pytest.mark.parametrize("words", [["list"], ["status"], ["stats"], ["doctor"], ["config"]])
    def test_by_default_is_no_error(self, unsaid_snap, default_store, words):
        assert unsaid_snap(*words).code == 0
        assert not default_store.exists()

    def test_a_store_without_its_format_file_is_damaged_and_not_missing(self, snap, store):
        snap("create")
        (store / "format").unlink()

        assert snap("list").code == 7

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize(
        "words", [["create"], ["run", "--", "true"], ["config", "max-size", "1G"]], ids=" ".join
    )
    def test_is_made_by_what_writes_and_named_once(self, snap, store, words):
        first, second = (snap(*words, process=True) for _ in range(2))

        assert (first.code, second.code) == (0, 0)
        assert f"Made the store {store}\n" in first.err
        assert "Made the store" not in second.err


ROOT_ALONE = [
    words
    for words in READING
    if words[0] not in {"gc", "verify", "session"} and "--all" not in words
]


class TestRootThatIsNotThere:
    """A ``-C`` that was mistyped must not look like a root without snapshots."""

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        ("name", "code", "error"),
        [
            ("mistyped", 5, "root-not-found"),
            ("mistyped/below", 5, "root-not-found"),
            ("file/below", 5, "root-not-found"),
            ("dangling", 5, "root-not-found"),
            ("file", 3, "not-a-directory"),
            ("/dev/null", 3, "not-a-directory"),
        ],
    )
    @pytest.mark.parametrize("words", ROOT_ALONE, ids=" ".join)
    def test_is_an_error(self, snap, root, tmp_path, words, name, code, error):
        snap("create")
        (tmp_path / "file").write_text("")
        (tmp_path / "dangling").symlink_to("mistyped")

        result = snap("-C", tmp_path / name, *words, "--json")

        assert (result.code, result.json["code"]) == (code, error)

    @pytest.mark.parametrize("words", [["list"], ["create"], ["run", "--", "true"]], ids=" ".join)
    def test_makes_no_store(self, unsaid_snap, default_store, tmp_path, words):
        result = unsaid_snap("--json", "-C", tmp_path / "mistyped", *words)

        assert (result.code, result.json["code"]) == (5, "root-not-found")
        assert not default_store.exists()

    @pytest.mark.parametrize("is_file", [False, True])
    def test_but_has_a_history_shows_it(self, snap, root, tmp_path, is_file):
        snap("create", "--name", "one")
        shutil.rmtree(root)
        if is_file:
            root.write_text("")

        def out(*words):
            result = snap("-C", root, *words, cwd=tmp_path)
            assert result.code == 0
            return result.out

        assert "[one]" in out("list")
        assert "one" in out("show", "latest")
        assert out("doctor").startswith("Nothing is unfinished\n")
        assert out("watch", "--status") == f"Not watched: {root}\n"
        assert out("plan", "list") == ""
        if not is_file:
            out("restore", "latest")
            assert root.is_dir()

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize("words", ROOT_ALONE, ids=" ".join)
    def test_and_whose_place_a_dangling_link_took_is_refused(self, snap, root, tmp_path, words):
        snap("create")
        shutil.rmtree(root)
        root.symlink_to("nowhere")

        result = snap("-C", root, *words, "--json", cwd=tmp_path)

        assert (result.code, result.json["code"]) == (3, "not-a-directory")
        assert "is no longer a directory, but a link" in result.json["message"]

    @pytest.mark.needs("birth times")
    def test_and_was_moved_says_where_to(self, snap, root, tmp_path):
        snap("create")
        root.rename(tmp_path / "moved")
        assert snap("list", cwd=tmp_path / "moved").code == 0

        result = snap("-C", root, "list", cwd=tmp_path)

        assert result.code == 5
        assert f"the root was moved to '{tmp_path / 'moved'}'" in result.err

    @pytest.mark.parametrize(
        "words", [["gc"], ["verify"], ["list", "--all"], ["root", "list"]], ids=" ".join
    )
    def test_is_nothing_to_what_is_about_the_store_alone(self, snap, root, tmp_path, words):
        snap("create")
        snap("-C", tmp_path / "forgotten", "root", "forget", root, "--force")

        assert snap("-C", tmp_path / "forgotten", *words).code == 0


class TestRoot:
    def test_that_is_not_the_current_directory_is_named(self, snap, root):
        (root / "below").mkdir()
        snap("create")

        below = snap("list", cwd=root / "below")

        assert f"The root is {root}\n" in below.err
        assert "The root is" not in snap("list").err
        assert "The root is" not in snap("-C", root, "list", cwd=root / "below").err

    @pytest.mark.parametrize(
        "words", [["list"], ["status"], ["create"], ["stats"], ["restore", "latest"], ["config"]]
    )
    def test_and_store_are_fields_of_every_result(self, snap, root, store, words):
        (root / "below").mkdir()
        snap("create")

        result = snap(*words, "--json", cwd=root / "below")

        assert result.place == {"root": str(root), "store": str(store)}
        assert result.err == ""


def test_nothing_to_list_names_root_and_store(snap, run_snap, root, store, tmp_path):
    snap("create")
    other = tmp_path / "other"
    other.mkdir()

    listed = run_snap("list", cwd=other)

    assert listed.err == f"No snapshots of {other} in {store}\n"
    assert snap("list", "--session", "s").err == f"No such snapshots of {root} in {store}\n"
    assert str(other) in run_snap("status", cwd=other).err


def test_stats_and_config_name_the_store(snap, store):
    snap("create")

    assert f"store:          {store}\n" in snap("stats").out
    assert str(store) in snap("config").err


@pytest.mark.sampled(6)
@pytest.mark.parametrize("words", [["list"], ["status"], ["gc"], ["create"]], ids=" ".join)
def test_a_store_that_may_not_be_looked_at_is_not_called_missing(snap, ordinary_snap, store, words):
    snap("create")
    store.chmod(0)

    result = ordinary_snap(*words, "--json")

    store.chmod(0o700)
    assert (result.code, result.json["code"]) == (1, "store-unavailable")
    assert "Permission denied" in result.json["message"]


def test_a_root_that_only_a_stranger_names_is_not_restored(tmp_path, run_snap):
    live, handed, below = tmp_path / "live", tmp_path / "handed", tmp_path / "live" / "below"
    below.mkdir(parents=True)
    (live / "file").write_text("theirs")
    treesnap.open(live, tmp_path / "made").create()
    shutil.copytree(tmp_path / "made", handed)
    (live / "file").write_text("mine")

    refused = run_snap("--store", handed, "restore", "latest", "--json", cwd=below)
    shown = run_snap("--store", handed, "list", cwd=below)

    assert (refused.code, refused.json["code"]) == (3, "root-not-named")
    assert (shown.code, (live / "file").read_text()) == (0, "mine")
    for named in (["-C", live], []):
        (live / "file").write_text("mine")
        cwd = below if named else live
        assert run_snap("--store", handed, *named, "restore", "latest", cwd=cwd).code == 0
        assert (live / "file").read_text() == "theirs"
