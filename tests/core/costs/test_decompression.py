"""How often a restore decompresses what it reads."""

from __future__ import annotations

from typing import Any

import treesnap
from treesnap.core.codec import pack


def test_restored_files_have_their_block_decompressed_once(tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    files = [root / f"file-{number:02}" for number in range(40)]
    for file in files:
        file.write_bytes(file.name.encode() * 100)
    handle = treesnap.open(root, tmp_path / "store")
    before = handle.create().snapshot.id
    for file in files[10:30]:
        file.write_text("changed")
    sizes = []

    def counting(decompress: Any) -> Any:
        def counted(how: int, stored: bytes, raw_size: int, *size: int) -> bytes:
            sizes.append((raw_size, *size))
            return decompress(how, stored, raw_size, *size)

        return counted

    for name in ("decompress", "decompress_start"):
        monkeypatch.setattr(pack, name, counting(getattr(pack, name)))
    handle.restore(before)
    whole_size = 40 * (1 + len(files[0].name) * 100)
    of_content = [size for size in sizes if size[0] == whole_size]
    assert of_content == [(whole_size, whole_size * 30 // 40)]
    assert {file.read_bytes() == file.name.encode() * 100 for file in files} == {True}
