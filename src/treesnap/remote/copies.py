"""Small files of a remote that nothing else says: each is there twice.

    state/<n>  state/<n>-c          members/<n>  members/<n>-c
    keys/<id>  keys/<id>-c          catalog/<n>-<id>  catalog/<n>-<id>-c

Both have the same bytes, and one that is whole will do. The first one is written first, and
decides. What is signed or encrypted is so under its name; a copy is nothing else than these bytes
in another place. Beside each other in a list they cost no request to be found. A copy that a
killed process did not write, :meth:`Doubled.mend` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from treesnap.core.model.errors import (
    Corrupt,
    GenerationMissing,
    NewerVersion,
    RemoteFailed,
    UnsupportedFormat,
)
from treesnap.remote.blobs.base import (
    BLOB_SIZE_MAX,
    BlobInfo,
    BlobMissing,
    Blobs,
    Data,
    WrappedBlobs,
)
from treesnap.remote.records import NotSigned

_FOLDERS = ("catalog/", "keys/", "members/", "state/")
_ENDING = "-c"

_Meaning = TypeVar("_Meaning")


def _weight(problem: Exception) -> int:
    """Returns how much the problem of a file says: that it is one at all, of which keys, or none of
    that.
    """
    for weight, kinds in enumerate((BlobMissing, NotSigned, GenerationMissing)):
        if isinstance(problem, kinds):
            return weight
    return 3


def copy_name(name: str) -> str | None:
    """Returns the name of the copy of a file, or None where there is none."""
    return name + _ENDING if name.startswith(_FOLDERS) else None


def original_name(name: str) -> str:
    """Returns the name of the file that has this one as its copy, or the same name."""
    return name.removesuffix(_ENDING) if name.startswith(_FOLDERS) else name


class Doubled(WrappedBlobs):
    """Blobs of which the small ones are written, listed and removed with their copies."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(blobs)
        self.mended: dict[str, str] = {}
        """What was read from a copy, or as it was kept, and what was wrong with it there."""

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, then its copy."""
        self._blobs.put(name, data)
        if copy := copy_name(name):
            self._blobs.put(copy, data)

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none, then its copy; returns whether it did.

        A failure with the copy is none: it would say that the blob may be missing.
        """
        is_done = self._blobs.create(name, data)
        if is_done and (copy := copy_name(name)):
            with suppress(RemoteFailed):
                self._blobs.put(copy, data)
        return is_done

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Asks for the removal of blobs and their copies."""
        copies = [copy for name in names if (copy := copy_name(name))]
        return self._blobs.delete([*names, *copies])

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields names, also of those of which the copy alone is there."""
        last = ""
        for blob in self._blobs.list(prefix, after):
            name = original_name(blob.name)
            if name != last:
                yield blob if name == blob.name else BlobInfo(name, blob.size_bytes)
            last = name

    def read(
        self,
        name: str,
        meaning: Callable[[bytes], _Meaning],
        size_bytes_max: int = BLOB_SIZE_MAX,
        kept: Callable[[], bytes | None] = lambda: None,
    ) -> _Meaning:
        """Returns what a blob means; where it is gone or damaged, what its copy does, and where it
        is damaged, what was ``kept``. Takes note of that.

        Raises BlobMissing, RemoteFailed, and the Corrupt or UnsupportedFormat of ``meaning``: that
        of the copy, where it says more.
        """
        problem: Exception
        try:
            return meaning(self._blobs.get(name, size_bytes_max))
        except NewerVersion:
            raise
        except (Corrupt, UnsupportedFormat, BlobMissing) as error:
            problem = first = error
        is_gone = isinstance(problem, BlobMissing)
        for data in self._others(name, size_bytes_max, kept, is_gone=is_gone):
            try:
                content = meaning(data)
            except (Corrupt, UnsupportedFormat) as error:
                problem = max(problem, error, key=_weight)
            else:
                self.mended[name] = "it is missing" if is_gone else str(first)
                return content
        raise problem

    def _others(
        self,
        name: str,
        size_bytes_max: int,
        kept: Callable[[], bytes | None],
        *,
        is_gone: bool,
    ) -> Iterator[bytes]:
        if (copy := copy_name(name)) is not None:
            with suppress(BlobMissing):
                yield self._blobs.get(copy, size_bytes_max)
                is_gone = False
        if not is_gone and (data := kept()) is not None:  # else it may have been swept
            yield data

    def single_names(self) -> Sequence[str]:
        """Returns the files of which only one of both is there; costs a list of each folder."""
        listed = [blob.name for folder in _FOLDERS for blob in self._blobs.list(folder)]
        counts = Counter(map(original_name, listed))
        return sorted(name for name, count in counts.items() if count == 1)

    def mend(
        self,
        names: Iterable[str],
        check: Callable[[str, bytes], object],
        kept: Callable[[str], bytes | None],
    ) -> tuple[str, ...]:
        """Writes blobs and copies again of which one is whole; returns which it wrote.

        ``check`` raises Corrupt or UnsupportedFormat for one that is not. Raises RemoteFailed.
        """
        written: tuple[str, ...] = ()
        for name in names:
            both = [name, *filter(None, [copy_name(name)])]
            stored: dict[str, bytes] = {}
            for each in both:
                with suppress(BlobMissing):
                    stored[each] = self._blobs.get(each)
            for data in (*stored.values(), kept(name)):
                if data is not None:
                    with suppress(Corrupt, UnsupportedFormat):
                        check(name, data)
                        break
            else:
                continue
            for each in both:
                if stored.get(each) != data:
                    self._blobs.put(each, data)
                    written += (each,)
        return written
