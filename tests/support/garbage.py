"""Packs that nothing needs, and those that something does."""

from __future__ import annotations

import os


def pack_files(store_path) -> set[str]:
    return set(os.listdir(store_path / "packs"))


def use_new_pack(store_path) -> None:
    """Lets the next writer begin a pack of its own."""
    for slot in (store_path / "slots").iterdir():
        slot.unlink()


def add_garbage(handle, root, store_path, size: int = 5000) -> None:
    """Makes a pack that nothing needs."""
    use_new_pack(store_path)
    (root / "garbage").write_bytes(os.urandom(size))
    handle.create(name="garbage")
    (root / "garbage").unlink()
    handle.delete("garbage")
    use_new_pack(store_path)


def add_garbage_to_pack(handle, root) -> None:
    """Appends what nothing needs to the one pack."""
    (root / "garbage").write_bytes(os.urandom(5000))
    status = root.stat()
    handle.create(name="garbage")
    (root / "garbage").unlink()
    os.utime(root, ns=(status.st_atime_ns, status.st_mtime_ns))
    handle.delete("garbage")
