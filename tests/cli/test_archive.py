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
