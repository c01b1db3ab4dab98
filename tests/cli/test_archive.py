"""``snap archive`` and ``snap import``."""

from __future__ import annotations

import io
import tarfile


def test_archive_writes_a_file_and_says_what_is_in_it(snap, root, tmp_path):
    (root / "a.txt").write_text("alpha\n")
    taken = snap("create").id

    told = snap("archive", "latest", "-o", tmp_path / "a.tar.gz")
    fields = snap("archive", "latest", "a.txt", "-o", tmp_path / "b.tar", "--json").json

    assert told.out.startswith(f"a.tar.gz: {taken[:12]}, 2 paths, 6 B of files, ")
    assert (fields["id"], fields["path"], fields["members"]) == (taken, "a.txt", 1)
    assert fields["target"] == str(tmp_path / "b.tar")
    assert fields["size_bytes"] == (tmp_path / "b.tar").stat().st_size


def test_archive_goes_to_a_pipe(snap, root):
    (root / "a.txt").write_text("alpha\n")
    snap("create")

    plain = snap("archive", "latest", "-o", "-").raw
    packed = snap("archive", "latest", "-o", "-", "--compress", "gzip").raw

    for data in (plain, packed):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            assert archive.getnames() == [".", "./a.txt"]


def test_archive_is_refused_before_anything_is_written(snap, root, tmp_path):
    snap("create")

    assert snap("archive", "latest", "-o", "-", "--json").code == 2
    assert snap("archive", "latest", "-o", tmp_path / "a.tar", "--compress", "zstd").code == 2
    assert snap("archive", "latest", "-o", tmp_path / "a.txt").code == 2
    snap("archive", "latest", "-o", tmp_path / "a.tar")
    again = snap("archive", "latest", "-o", tmp_path / "a.tar")
    assert again.code == 3
    assert "--force" in again.err
    assert snap("archive", "latest", "-o", tmp_path / "a.tar", "--force").code == 0


def test_archive_says_what_it_leaves_out(snap, root, tmp_path):
    (root / ".snapignore").write_text("cache\n")
    (root / "cache").touch()
    snap("create")

    told = snap("archive", "latest", "-o", tmp_path / "a.tar")

    assert "1 name that the snapshot does not hold" in told.err


def test_import_prints_an_id_and_leaves_the_root_alone(snap, root, tmp_path):
    (root / "a.txt").write_text("alpha\n")
    taken = snap("create").id
    snap("archive", taken, "-o", tmp_path / "a.tar.zst")
    (root / "a.txt").write_text("beta\n")

    told = snap("import", tmp_path / "a.tar.zst", "--name", "copy")
    fields = snap("import", tmp_path / "a.tar.zst", "-m", "again", "--tag", "k=v", "--json").json

    assert (root / "a.txt").read_text() == "beta\n"
    assert snap("show", "copy", "--json").json["id"] == told.id
    assert fields["root_hash"] == snap("show", taken, "--json").json["root_hash"]
    assert (fields["snapshot"]["label"], fields["snapshot"]["tags"]) == ("again", {"k": "v"})
    snap("restore", "copy")
    assert (root / "a.txt").read_text() == "alpha\n"


def test_import_reads_a_pipe_and_another_directory(snap, root, tmp_path):
    (root / "a.txt").write_text("alpha\n")
    snap("create")
    data = snap("archive", "latest", "-o", "-").raw
    (tmp_path / "other").mkdir()

    piped = snap("import", "-", "--json", given=data, process=True)
    copied = snap("import", tmp_path / "other", "--json").json

    assert piped.json["snapshot"]["label"] == "Imported from standard input"
    assert copied["snapshot"]["label"] == "Imported from other"
    assert snap("ls", "latest~1").out == "a.txt\n"
    assert snap("ls", "latest").out == ""


def test_import_refuses_what_is_no_archive(snap, root, tmp_path):
    (tmp_path / "a.tar").write_text("no archive\n" * 100)

    told = snap("import", tmp_path / "a.tar")
    fields = snap("import", tmp_path / "a.tar", "--json")

    assert told.code == 2
    assert f"Could not import '{tmp_path / 'a.tar'}': " in told.err
    assert "hint: nothing was imported" in told.err
    assert fields.json["code"] == "invalid-archive"
    assert snap("import", tmp_path / "absent.tar").code == 5


def test_archive_is_not_printed_on_a_terminal(snap, root, monkeypatch):
    snap("create")
    monkeypatch.setattr("treesnap.cli.commands.archive.is_terminal", lambda _stream: True)

    told = snap("archive", "latest", "-o", "-")

    assert (told.code, told.raw) == (2, b"")
    assert "not printed on a terminal" in told.err


def test_archives_take_a_session(snap, root, tmp_path):
    (root / "a").write_text("one")
    snap("create", "--session", "build", "--step", "1")
    (root / "a").write_text("two")
    snap("create", "--session", "build", "--step", "2")

    snap("archive", "step:1", "--session", "build", "-o", tmp_path / "a.tar")

    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.extractfile("./a").read() == b"one"
