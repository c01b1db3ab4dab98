"""The files that a list names: what its lines read as, and what of them exists in the tree.

Models decorate the lines of a list in more ways than a grammar can hold: emphasis, links, check
boxes, labels, arrows, remarks. So the tree has the last word. Whatever run of whole tokens in a
line is a path that exists is named, the longest run first, beside what the line reads as. So is
each word of the rest that looks like a path, because the step may create it: ``a.ts, new.ts``,
``a.ts -> b.ts``. Of an item of which nothing exists these are the words with an ending that are
in a directory, or several of them: ``[NEW] src/a.ts``, ``a.ts and b.ts``. A line that is none of
these is *unclear*; the caller says so. One word that is the whole list names a file to come only if
it has an ending or a directory, or is a name that projects have: every language has words for
"nothing".

The tree is looked at one directory at a time, never through a link, and only in directories that
a line leads to; a line costs no system call for names that are listed already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import unquote

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.named_tuple import NamedTuple

MATCHES_MAX = 10_000
"""The most paths that the patterns of one line may match."""
BULLET = re.compile(r"(?:[-*+\u2022\u2013](?:[ \t]+|$)|[0-9]{1,4}[.)][ \t]+)(.*)")
"""An item of a list, without its bullet or number."""
QUOTED = re.compile(r"(?P<mark>[`\"'])(?P<word>.+?)(?P=mark)(?P<rest>.*)")
"""A quoted word, and what follows it."""
DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")
"""The beginning of an absolute path as Windows writes it."""
_ALTERNATIVES_MAX = 100
_LAYERS_MAX = 100
"""The most marks around a path that are taken off, one in another."""
_LINES_LENGTH_MAX = 256
"""Characters at the end of a path among which numbers of lines are looked for."""
_NAME_LENGTH_MAX = 255
_PATTERN_LENGTH_MAX = 4096
"""As long as a path may be that Linux is given."""
_BOX = re.compile(r"\[[ xX]?\][ \t]+")
_COMMENT = re.compile(r"(?=[^ ]*[./])([^ ]+?):?[ \t]+(?:[(#:\u2013\u2014]|-{1,2}[ \t])")
_COLON_COMMENT = re.compile(r"(?=[^ ]*[./])([^ ]+):[ \t]")
_REMARK = re.compile(r"(?=[^\s]*[./])(\S+?)[:,]?\s+(?:->|=>|//|[\u2190-\u21ff]|\(|#).*")
_VERBS = "new|add|create|created|modify|modified|edit|change|update|delete|remove|(?-i:[DMRU])"
_LABEL = re.compile(rf"(?:file|path|name|{_VERBS})[ \t]*[:=][ \t]*(?=\S)", re.IGNORECASE)
_VERB = re.compile(rf"(?:file|{_VERBS})[ \t]+(?=\S*[./])", re.IGNORECASE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_LINES = re.compile(r":[0-9]+(?:[-:,][0-9]+)*$")
_EMPHASIS = ("***", "**", "~~", "*")
_AFTER_QUOTED = " \t:,("
_NO_PATH = frozenset(
    {"", "-", "none", "n/a", "null", "nothing", "empty", "unknown", "everything"}
    | {"tbd", "todo", "etc", "e.g", "i.e", "k.a", "n.a", "s/o", "nil"}
)
"""Words that are written where there is no path, without what is around them."""
_BARE_NAME = re.compile(
    r"\w*file|readme|licen[cs]e|copying|notice|authors|contributors|maintainers|owners|codeowners"
    r"|changelog|changes|news|history|version|install|security|support|manifest|workspace|build"
    r"|gradlew|mvnw|configure|wscript|sconstruct|sconscript|kconfig|kbuild|cname|crontab|hosts",
    re.IGNORECASE | re.ASCII,
)
"""Names without an ending of which a file to come is believed."""
_IS_PATH = re.compile(r"[^\s*?<>|\"`,;{}\\]+")
_IS_PATH_WITH_BLANKS = re.compile(
    r"(?=[^*?<>|\"`,;{}\\]*\Z)(?s:[^\t/]*/.*|[^\t]*\.[A-Za-z0-9]{1,8})"
)
_PATTERN = re.compile(r"(?<![^\s`\"'<>|;])[^\s`\"'<>|;]*[*?\[{][^\s`\"'<>|;]*")
"""Each word is looked at from its beginning alone: else a long one would take its square."""
_ALTERNATIVES = re.compile(r"\{([^{},]*,[^{}]*)\}")
_ESCAPED = re.compile(r"\\(?=[\\`*_{}\[\]()#+.!~<>|-])")
_SOFT = frozenset("._-~!?")
_BETWEEN_WORDS = re.compile(r"[\s,;|\"'`*]+|->|=>|[\u2190-\u21ff]")
_SIDE_OF_PATCH = re.compile(r"(?<![\w./~-])[abciow]/")
"""What patches of git write before a path, with ``diff.mnemonicPrefix`` too."""
_FIRST_WITHOUT_BLANKS = "\u2e80"
"""From here on are the letters of Chinese, Japanese and Korean, which stand beside a path."""
_BRACES = re.compile(
    r"(?<![^\s`\"'<>|;*?])[^\s`\"'<>|;*?]*"
    r"\{[^{},\s\"'`*?]*,[^{}\s\"'`*?]*\}[^\s`\"'<>|;*?{}]*"
)
_ENDING = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,7}")
_DIRECTORY_ABOVE = re.compile(
    r"(?<![\w./~-])"
    r"(?:\$\w{1,64}|\$?\{[^{}/,\s]{1,64}\}|%\w{1,64}%|<[^<>/]{1,64}>|\.{3}|\u2026"
    r"|\$\([^()/]{1,64}\)|`[^`/]{1,64}`|\[[^\[\]/]{1,64}\]|@|~)/"
)
"""What stands for the directory in front of a path in it: ``$PWD/``, ``<project>/``, ``.../``."""
_RANGE = re.compile(r"(?<=\w)\.{2}(?=\w)")
"""Between two paths: ``a.ts..b.ts``."""
_MARKS = re.compile(r"(?:[^\x00-\x7f\w\ud800-\udfff]\s*)+")
"""Emoji, dashes and the like before a path."""
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
"""What may surround a token, and may also be the beginning or end of a name."""


class ListedFiles(NamedTuple):
    """What a list of files names."""

    files: tuple[str, ...]
    """Relative to the directory, normalised, each once, in the order of the lines."""
    unclear: tuple[str, ...]
    """Lines of which nothing exists, and which do not read as a path."""
    has_path: bool
    """Whether any line names what exists, or reads as a path."""


def listed_files(lines: list[str], directory: str, foreign: str | None = None) -> ListedFiles:
    r"""Returns what a list names in a directory; raises InvalidArgument for a path outside of it.

    ``foreign`` is the name that the writer of the list knows the directory by, such as
    ``C:/project``: paths below it are meant. Then ``\`` separates names as well.
    """
    reader = _ListReader(directory, foreign)
    files: dict[str, None] = {}
    unclear: dict[str, None] = {}
    words: dict[str, str] = {}
    has_path = False
    for line in lines:
        named = reader.named(line)
        files.update(dict.fromkeys(named.paths))
        if not named.is_clear:
            unclear[line] = None
        elif named.exists or not all(map(_is_word, named.paths)):
            has_path = has_path or bool(named.paths)
        else:
            words.update(dict.fromkeys(named.paths, line))
    if len(words) == 1 and not has_path:
        unclear.update(dict.fromkeys(words.values()))
    return ListedFiles(tuple(files), tuple(unclear), has_path or len(words) > 1)


class _Named(NamedTuple):
    paths: list[str]
    is_clear: bool
    exists: bool = False
    """Whether any of the paths is there."""


def _introduces(line: str) -> bool:
    """Returns whether a line says what the following ones are, as ``Files to modify:`` does."""
    return BULLET.fullmatch(line) is None and line.rstrip("*_").endswith(":")


class _ListReader:
    """Reads lines; remembers the names in the directories that it looked into."""

    def __init__(self, directory: str, foreign: str | None) -> None:
        self._directory = directory
        self._bases = tuple(
            dict.fromkeys((os.path.normpath(directory), os.path.realpath(directory)))
        )
        self._foreign = foreign.replace("\\", "/").rstrip("/") if foreign is not None else None
        self._names: dict[str, frozenset[str]] = {}
        self._lengths: dict[str, int] = {}
        """Of the longest of these names; a longer part of a text is none of them."""

    def named(self, line: str) -> _Named:
        """Returns the paths that a line names, those it reads as first."""
        bullet = BULLET.fullmatch(line)
        given = (bullet[1] if bullet is not None else line).strip()
        if self._foreign is not None:
            given = self._without_foreign(given)
        existing = list(dict.fromkeys((*self._tokens(given), *self._matches(given))))
        if not given or (bullet is None and _introduces(given)):
            return _Named(existing, is_clear=True, exists=bool(existing))
        paths = list[str]()
        is_clear = bool(existing)
        for text in self._readings(given):
            path = self._path(text, must_be_inside=not existing or not _has_blank(text))
            if path is None or "://" in text:
                continue
            if (above := self._file_above(path)) is not None:
                is_clear = True
                existing += above
                continue
            if _reads_as_path(path):
                is_clear = True
            elif existing:
                continue
            paths.append(path)
        if existing:
            paths += self._to_come(given)
        elif bullet is not None:
            paths += self._alone_to_come(given)
        if bullet is None and _has_blank(given) and not existing:
            return _Named([], is_clear=False)  # prose: it is not an item of the list
        found = list(dict.fromkeys((*paths, *existing)))
        return _Named(found, is_clear=is_clear, exists=bool(existing))

    def _readings(self, given: str) -> Iterator[str]:
        """Yields what a line may read as; both readings if a remark may be part of the name."""
        bare = _undecorated(given)
        quoted = QUOTED.fullmatch(bare)
        if quoted is not None and (not quoted["rest"] or quoted["rest"][0] in _AFTER_QUOTED):
            yield quoted["word"]
            return
        yield bare
        verb = _VERB.match(bare)
        if verb is not None:
            bare = bare[verb.end() :]
            yield bare
        comment = _COMMENT.match(bare) or _COLON_COMMENT.match(bare) or _REMARK.match(bare)
        if comment is not None:
            yield _undecorated(comment[1])

    def _to_come(self, given: str) -> Iterator[str]:
        """Yields what else in a line looks like a path, beside what exists in it."""
        rest = self._rest(self._below_bases(given))
        words = [word for braces in _BRACES.findall(rest) for word in _expanded(braces)]
        for word in (*words, *_BETWEEN_WORDS.split(_BRACES.sub(" ", rest))):
            text = _undecorated(_without_brackets(word))
            path = self._path(text, must_be_inside=False) if text and "://" not in text else None
            if path is None or not _reads_as_path(path):
                continue
            first, slash, _ = path.partition("/")
            is_below_known = bool(slash) and bool(self._listed(first))
            if (is_below_known or _ENDING.search(path)) and self._may_come(path):
                yield path

    def _alone_to_come(self, given: str) -> list[str]:
        """Returns what looks like a path in an item of which nothing exists.

        Less counts there than beside what exists: one word with an ending may be the last one of a
        name with blanks.
        """
        paths = [
            path
            for path in self._to_come(given)
            if _ENDING.search(path) and path.count("[") == path.count("]")
        ]
        return [path for path in paths if "/" in path or len(paths) > 1]

    def _rest(self, text: str) -> str:
        """Returns a text without the paths in it that exist."""
        starts, ends = _boundaries(text)
        kept, position = list[str](), 0
        while position < len(text):
            end, path = (
                self._longest("", text, position, ends) if starts[position] else (position, None)
            )
            kept.append(" " if path else text[position])
            position = end if path else position + 1
        return "".join(kept)

    def _may_come(self, path: str) -> bool:
        """Returns whether nothing is at a path, and nothing but directories above it."""
        above = ""
        for name in path.split("/"):
            if name not in self._listed(above):
                return True
            above = os.path.join(above, name)
            where = os.path.join(self._directory, above)
            if os.path.islink(where) or not os.path.isdir(where):
                break
        return False

    def _file_above(self, path: str) -> list[str] | None:
        """Returns the file that a path leads through, and what of the rest exists; or None."""
        above, names = "", path.split("/")
        for number, name in enumerate(names[:-1], 1):
            if name not in self._listed(above):
                return None
            above = os.path.join(above, name)
            where = os.path.join(self._directory, above)
            if os.path.isfile(where) and not os.path.islink(where):
                return [above, *self._tokens("/".join(names[number:]))]
        return None

    def _path(self, given: str, *, must_be_inside: bool) -> str | None:
        """Returns a path relative to the directory; None for one outside, or raises."""
        try:
            return self._relative(given)
        except InvalidArgument:
            if must_be_inside:
                raise
            return None

    def _relative(self, given: str) -> str:
        shown = repr(given if len(given) <= 100 else given[:100] + "...")
        if DRIVE.match(given):
            raise InvalidArgument(f"The path {shown} is absolute; it must be relative")
        if "\\" in given:  # or a Windows path would silently name an absent file
            raise InvalidArgument(f"The path {shown} has a backslash; use '/' between names")
        if "\0" in given:
            raise InvalidArgument(f"The path {shown} contains a NUL byte")
        path = os.path.normpath(given)
        if any(len(os.fsencode(name)) > _NAME_LENGTH_MAX for name in path.split("/")):
            raise InvalidArgument(f"The path {shown} has a name that is too long")
        if path.startswith("/"):
            base = next((base for base in self._bases if _is_below(path, base)), None)
            if base is None:
                raise InvalidArgument(
                    f"The path {shown} is absolute and outside {self._directory!r}"
                )
            path = os.path.relpath(path, base)
        if path == ".." or path.startswith("../"):
            raise InvalidArgument(f"The path {shown} leads outside the working directory")
        if path == ".":
            raise InvalidArgument(f"The path {shown} is the working directory, not a file in it")
        return path

    def _without_foreign(self, text: str) -> str:
        text = text.replace("\\", "/")
        assert self._foreign is not None
        return re.sub(re.escape(self._foreign) + "/", "", text, flags=re.IGNORECASE)

    def _tokens(self, line: str) -> Iterator[str]:
        """Yields the paths that exist among the runs of whole tokens of a line."""
        forms = [
            line,
            _ESCAPED.sub("", line),
            _SIDE_OF_PATCH.sub("", line),
            _DIRECTORY_ABOVE.sub(self._unless_it_exists, line),
            _RANGE.sub(" ", line),
        ]
        name = os.path.basename(self._bases[0])
        if name and name + "/" in line and name not in self._listed(""):
            own = re.compile(rf"(?<![\w./~-])(?:\./)?{re.escape(name)}/")
            forms.append(own.sub("", line))  # as seen from the directory above
        if "%" in line:
            forms.append(unquote(line, errors="surrogateescape"))
        for text in dict.fromkeys(forms):
            yield from self._runs(self._below_bases(text))

    def _unless_it_exists(self, above: re.Match[str]) -> str:
        """Returns what stands for a directory above, if one of that name is there, or nothing."""
        return above[0] if above[0][:-1] in self._listed("") else ""

    def _below_bases(self, text: str) -> str:
        """Returns a text in which absolute paths below the directory are relative ones."""
        for base in self._bases:
            if base != "/":
                text = text.replace(base + "/", "\n")
        return text

    def _runs(self, text: str) -> Iterator[str]:
        starts, ends = _boundaries(text)
        position = 0
        while position < len(text):
            end, path = (
                self._longest("", text, position, ends) if starts[position] else (position, None)
            )
            if path:
                yield path
            position = max(end, position + 1)

    def _longest(
        self, above: str, text: str, start: int, ends: list[bool]
    ) -> tuple[int, str | None]:
        """Returns where the longest existing path at a place ends, and the path; "" for ``.``."""
        begin, directories = start, list[tuple[str, int, int]]()
        while True:
            slash = text.find("/", start, start + _NAME_LENGTH_MAX + 1)
            directories.append((above, start, slash))
            name = text[start:slash] if slash > start else ""
            if name and name != ".":
                below = os.path.join(above, name)
                if name not in self._listed(above) or not self._listed(below):
                    break
                above = below
            elif not name:
                break
            start = slash + 1
        found: str | None = None
        for above, start, slash in reversed(directories):
            is_whole = ends[slash + 1] and text[slash + 1 : slash + 2] not in set("*?[{")
            if found is not None and text[start:slash] != "." and is_whole:
                return slash + 1, found
            found = above
            names = self._listed(above)
            last = min(slash if slash >= 0 else len(text), start + self._lengths[above])
            for end in range(last, start, -1):
                if ends[end] and text[start:end] in names:
                    return end, os.path.join(above, text[start:end])
        return begin, None

    def _listed(self, path: str) -> frozenset[str]:
        """Returns the names in a directory; none for what is not a directory, or cannot be read."""
        if path not in self._names:
            where = os.path.join(self._directory, path)
            try:
                is_link = bool(path) and os.path.islink(where)
                self._names[path] = frozenset() if is_link else frozenset(os.listdir(where))
            except (OSError, ValueError):
                self._names[path] = frozenset()
            self._lengths[path] = max(map(len, self._names[path]), default=0)
        return self._names[path]

    def _matches(self, given: str) -> list[str]:
        """Returns the existing paths that the patterns in a line match."""
        paths: dict[str, None] = {}
        for word in _PATTERN.findall(given):
            for text in _expanded(_undecorated(self._below_bases(word).strip("\n,:()"))):
                parts = [part for part in text.split("/") if part not in ("", ".")]
                if not parts or ".." in parts or text.startswith("/"):
                    continue
                if len(text) > _PATTERN_LENGTH_MAX:
                    continue
                if len(parts) == 1 and set(parts[0]) <= {"*", "?"}:
                    continue  # a bullet, or emphasis that lost its word
                for path in self._matching("", parts, set()):
                    paths[path] = None
                    if len(paths) > MATCHES_MAX:
                        raise InvalidArgument(
                            f"The pattern {text!r} matches more than {MATCHES_MAX:,} paths"
                        )
        return list(paths)

    def _matching(self, above: str, parts: list[str], seen: set[tuple[str, int]]) -> Iterator[str]:
        """Yields what matches; ``seen`` has where which rest of the pattern was looked for.

        Without it, each further ``**`` would multiply the work by the depth of the tree.
        """
        if (above, len(parts)) in seen:
            return
        seen.add((above, len(parts)))
        first, rest = parts[0], parts[1:]
        if first == "**":
            if rest:
                yield from self._matching(above, rest, seen)
            for name in sorted(self._listed(above)):
                below = os.path.join(above, name)
                if self._listed(below):
                    yield from self._matching(below, parts, seen)
                elif not rest:
                    yield below
            return
        for name in sorted(self._listed(above)):
            if name == first or fnmatchcase(name, first):
                below = os.path.join(above, name)
                if not rest:
                    yield below
                else:
                    yield from self._matching(below, rest, seen)


def _boundaries(text: str) -> tuple[list[bool], list[bool]]:
    """Returns at which places of a text a token may start, and at which it may end."""
    size = len(text)
    starts, ends = [False] * (size + 1), [False] * (size + 1)
    is_after = True  # a separator, or the soft characters after one
    for position in range(size):
        starts[position] = is_after
        is_after = _separates(text[position]) or (is_after and text[position] in _SOFT)
        if text[position] == "." and text[position + 1 : position + 2] in {".", "/"}:
            is_after = False  # "../x" leads elsewhere
        elif text[position] == "/" and text[position - 1 : position] == ".":
            is_after = starts[position - 1]  # "./" leads nowhere
    is_before = True
    for position in range(size, 0, -1):
        ends[position] = is_before
        is_before = _separates(text[position - 1]) or (is_before and text[position - 1] in _SOFT)
    return starts, ends


def _separates(character: str) -> bool:
    if _is_surrogate(character):
        return False
    is_of_name = character.isalnum() and character < _FIRST_WITHOUT_BLANKS
    return not (is_of_name or character in "/._-~!?\\")


def _undecorated(text: str) -> str:
    """Returns a text without check boxes, emphasis, labels, a link's marks, and line numbers."""
    for _ in range(_LAYERS_MAX):
        before, text = text, text.strip()
        text = _BOX.sub("", text, count=1) if _BOX.match(text) else text
        link = _LINK.fullmatch(text)
        text = link[1] if link is not None else text
        for mark in _EMPHASIS:
            if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
                inside = text[len(mark) : -len(mark)]
                text = text if mark in inside else inside
        if len(text) > 2 and text[0] == "<" and text[-1] == ">":
            text = text[1:-1]
        label = _LABEL.match(text)
        text = text[label.end() :] if label is not None else text
        marks = _MARKS.match(text)
        text = text[marks.end() :].strip() if marks is not None else text
        if text.endswith((",", ";")) and not _has_blank(text):
            text = text[:-1]
        if "/" in text or "." in text:
            text = text[:-_LINES_LENGTH_MAX] + _LINES.sub("", text[-_LINES_LENGTH_MAX:])
        if text == before:
            break
    return text


def _without_brackets(word: str) -> str:
    """Returns a word without brackets around it, of which one may be around other words too."""
    for _ in range(_LAYERS_MAX):
        before, word = word, word.rstrip(".:!?")
        if word and word[0] in _BRACKETS and not word.endswith(_BRACKETS[word[0]]):
            word = word[1:]
        elif word and word[0] in _BRACKETS:
            word = word[1:-1]
        if any(word.endswith(end) and begin not in word for begin, end in _BRACKETS.items()):
            word = word[:-1]
        if word == before:
            break
    return word


def _is_surrogate(character: str) -> bool:
    return 0xD800 <= ord(character) <= 0xDFFF


def _has_blank(text: str) -> bool:
    return any(character.isspace() for character in text)


def _reads_as_path(text: str) -> bool:
    """Returns whether a text can be meant as a path that does not exist yet."""
    word = _without_brackets(text).strip("_*")
    parts = [part.strip() for part in word.lower().split("/")]
    is_nothing = "/".join(parts) in _NO_PATH or _NO_PATH.issuperset(parts)
    if is_nothing or not any(c.isalnum() or _is_surrogate(c) for c in text):
        return False
    return bool(_IS_PATH.fullmatch(text) or _IS_PATH_WITH_BLANKS.fullmatch(text))


def _is_word(path: str) -> bool:
    """Returns whether a path that does not exist may be a mere word, such as "nothing"."""
    word = _without_brackets(path)
    return "/" not in word and "." not in word and _BARE_NAME.fullmatch(word) is None


def _is_below(path: str, base: str) -> bool:
    return (path + "/").startswith(base.rstrip("/") + "/")


def _expanded(pattern: str) -> list[str]:
    """Returns the patterns that one with alternatives in braces stands for."""
    texts, waiting = list[str](), [pattern]
    while waiting and len(texts) + len(waiting) <= _ALTERNATIVES_MAX:
        text = waiting.pop()
        braces = _ALTERNATIVES.search(text)
        if braces is None:
            texts.append(text)
            continue
        before, after = text[: braces.start()], text[braces.end() :]
        words = braces[1].split(",", _ALTERNATIVES_MAX)[:_ALTERNATIVES_MAX]
        waiting += [before + word.strip() + after for word in words]
    return texts
