"""``config``: the settings of a store, of a root and of a user, each in a TOML file.

A setting of the root wins over that of the store, and both over the default. People may edit
the files: a change keeps comments and order. What cannot be understood is refused with the
file's name before it has any effect.

Settings that run a program, or say where a secret is, are the user's alone: ``diff.PATTERN``,
``passphrase-command.URL`` and ``passphrase-file.URL``. A store may come from another machine or
belong to another user, so one in its files is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from treesnap.errors import ErrorCode, InvalidArgument, StoreMissing, quoted
from treesnap.fs.base import ReadingFileSystem
from treesnap.fs.durable import ensure_directories, read_file, replace_file, unlink_if_present
from treesnap.fs.local import LocalFileSystem
from treesnap.fs.os_errors import reported
from treesnap.named_tuple import NamedTuple
from treesnap.ops.access import opened
from treesnap.ops.context import Context, Session, user_config_path
from treesnap.quantities import format_duration, format_size, parse_duration, parse_size, size_text
from treesnap.store.lock import locked_roots
from treesnap.store.maintenance.retention import AUTOMATIC, DEFAULT, Policy
from treesnap.worktree.scan.ignore import given

if TYPE_CHECKING:
    from treesnap.results import ConfigResult, Setting, SettingSource

    _Sources = tuple[tuple[SettingSource, dict[str, Any]], ...]

_FILE_SIZE_MAX = 1 << 16
_COUNT_MAX = 10**9
_DIFF = "diff."
PASSPHRASE_COMMAND, PASSPHRASE_FILE = "passphrase-command.", "passphrase-file."
"""What the settings begin with that say where the passphrase of the remote at a URL comes from."""
_OF_USER = {_DIFF: "PATTERN", PASSPHRASE_COMMAND: "URL", PASSPHRASE_FILE: "URL"}
"""What the settings of a user begin with, and what follows."""
_WRITABLE_BY_OTHERS = 0o002


class Key(NamedTuple):
    """One setting: how its value is parsed, shown and stored."""

    parse: Callable[[str], Any]
    """From the text that a person writes; raises InvalidArgument."""
    stored: type | tuple[type, ...]
    """What TOML may hold in its place."""
    text: Callable[[Any], str]
    default: Any
    check: Callable[[Any], object] = lambda _value: None
    """Raises InvalidArgument for a value that a file holds as a list."""


def _count(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_COUNT_MAX))
    if not is_number or int(text) > _COUNT_MAX:
        raise InvalidArgument(f"{text!r} is not a number from 0 to {_COUNT_MAX:,}")
    return int(text)


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise InvalidArgument(f"{text!r} is neither 'true' nor 'false'")
    return text == "true"


def _flag_text(value: Any) -> str:
    return str(value).lower()


def _tags(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _patterns(text: str) -> tuple[str, ...]:
    patterns = _tags(text)
    given(patterns)
    return patterns


def _counted(default: int | None) -> Key:
    return Key(_count, int, str, default)


KEYS: Mapping[str, Key] = {
    "automatic": Key(_flag, bool, _flag_text, default=True),
    "background": Key(_flag, bool, _flag_text, default=True),
    "fork-server": Key(_flag, bool, _flag_text, default=False),
    "max-size": Key(parse_size, (str, int), format_size, None),
    "keep.last": _counted(DEFAULT.keep_last),
    "keep.within": Key(parse_duration, str, format_duration, None),
    "keep.hourly": _counted(DEFAULT.keep_hourly),
    "keep.daily": _counted(DEFAULT.keep_daily),
    "keep.weekly": _counted(DEFAULT.keep_weekly),
    "keep.monthly": _counted(DEFAULT.keep_monthly),
    "keep.yearly": _counted(DEFAULT.keep_yearly),
    "keep.tags": Key(_tags, list, ",".join, ()),
    "exclude": Key(_patterns, list, ",".join, (), check=given),
    "maker.metadata": Key(_flag, bool, _flag_text, default=False),
    "checkpoints.git": Key(_flag, bool, _flag_text, default=False),
}
"""Every setting, in the order in which they are shown."""


class TextCommand(NamedTuple):
    """A command that prints files as text, for differences."""

    pattern: str
    """Which files, in gitignore syntax."""
    line: str
    words: tuple[str, ...]


class Settings(NamedTuple):
    """What holds for a root."""

    policy: Policy
    """What is kept of automatic snapshots."""
    is_automatic: bool
    """Whether old automatic snapshots and garbage are removed automatically."""
    is_in_background: bool
    """Whether the command leaves that to a process of its own."""
    has_fork_server: bool
    """Whether the command starts a process that runs the commands that follow."""
    store_size_bytes_max: int | None
    """What the store may take, or None."""
    root_size_bytes_max: int | None
    """What the root's snapshots may take in it, or None."""
    excluded: tuple[str, ...]
    """Patterns of what no snapshot holds, beside those of ignore files."""


def settings_of(session: Session) -> Settings:
    """Returns what holds for a root. Costs two looks; raises InvalidArgument."""
    fs = session.fs
    of_store = _read(fs, _store_path(session))
    of_root = _read(fs, _root_path(session))
    values = {name: key.default for name, key in KEYS.items()} | of_store | of_root
    policy = Policy(
        keep_last=values["keep.last"],
        keep_within_s=values["keep.within"],
        keep_hourly=values["keep.hourly"],
        keep_daily=values["keep.daily"],
        keep_weekly=values["keep.weekly"],
        keep_monthly=values["keep.monthly"],
        keep_yearly=values["keep.yearly"],
        keep_tags=values["keep.tags"],
        kinds=AUTOMATIC,
    )
    return Settings(
        policy=policy,
        is_automatic=values["automatic"],
        is_in_background=values["background"],
        has_fork_server=values["fork-server"],
        store_size_bytes_max=of_store.get("max-size"),
        root_size_bytes_max=of_root.get("max-size"),
        excluded=values["exclude"],
    )


def config(
    context: Context, key: str | None, value: str | None, *, for_root: bool, unset: bool
) -> ConfigResult:
    """Shows or changes settings; see :meth:`treesnap.Handle.config`."""
    from treesnap.results import ConfigResult, Setting, SettingSource

    if key is not None and key not in KEYS and not key.startswith(tuple(_OF_USER)):
        known = ", ".join([*KEYS, *map("".join, _OF_USER.items())])
        raise InvalidArgument(f"There is no setting {key!r}; there are: {known}")
    changes = value is not None or unset
    if changes and key is None:
        raise InvalidArgument("The setting to change is not named")
    if value is not None and unset:
        raise InvalidArgument("A setting is either given a value or unset, not both")
    if key is not None and key.startswith(tuple(_OF_USER)):
        if for_root:
            raise InvalidArgument(f"{key} holds for all roots of its user, not for one")
        if changes:
            change_of_user(key, value)
        found = [item for item in _of_user() if item.key == key]
        return ConfigResult(tuple(found or [Setting(key, None, SettingSource.DEFAULT)]))
    if value is not None and key is not None:
        KEYS[key].parse(value)
    try:
        with opened(context, "read the settings", create=changes, recover=False) as session:
            if changes and key is not None:
                if for_root:
                    session.root.register()
                path = _root_path(session) if for_root else _store_path(session)
                with locked_roots(session.fs, session.store.layout, context.wait_s):
                    _change(session, path, key, value)
            fs = session.fs
            sources: _Sources = (
                (SettingSource.ROOT, _read(fs, _root_path(session))),
                (SettingSource.STORE, _read(fs, _store_path(session))),
            )
    except StoreMissing:
        sources = ()
    if key is not None:
        return ConfigResult(settings=(_setting(key, sources),))
    return ConfigResult(settings=(*(_setting(name, sources) for name in KEYS), *_of_user()))


def text_commands() -> list[TextCommand]:
    """Returns which files differences show by the text that a command prints; the last one counts.

    They are in the user's own file, ``[diff]`` with a pattern for each. Costs two looks. Raises
    InvalidArgument for a file that another user may have written, or that says something else.
    """
    return [
        _text_command(name.removeprefix(_DIFF), value)
        for name, value in _user_values().items()
        if name.startswith(_DIFF)
    ]


def user_setting(key: str) -> str | None:
    """Returns a setting of the user, or None; costs and raises what :func:`text_commands` does."""
    return _user_values().get(key)


def _user_values() -> dict[str, str]:
    """Returns what the user's own file holds, checked."""
    path = user_config_path()
    document = _document(LocalFileSystem(), os.path.realpath(path)) if path is not None else {}
    if path is None or not document:
        return {}
    _refuse_foreign(os.path.realpath(path))
    found = {}
    for name, value in _flat(document):
        if not name.startswith(tuple(_OF_USER)):
            raise _invalid(path, f"there is no setting {name!r} of a user")
        if not isinstance(value, str):
            raise _invalid(path, f"{name} is a {type(value).__name__}")
        with _named(path, name):
            _check_of_user(name, value)
        found[name] = value
    return found


def _check_of_user(name: str, value: str) -> None:
    """Raises InvalidArgument for what a setting of a user cannot be."""
    if name.startswith(_DIFF):
        _text_command(name.removeprefix(_DIFF), value)
    elif not value.strip():
        raise InvalidArgument("It is empty")
    elif name.startswith(PASSPHRASE_FILE) and not os.path.isabs(value):
        raise InvalidArgument(f"{quoted(value)} is not an absolute path")


def _text_command(pattern: str, line: str) -> TextCommand:
    import shlex

    given((pattern,))
    if pattern.startswith("!"):
        raise InvalidArgument(f"The pattern {pattern!r} names no files, it excepts some")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidArgument(f"{line!r} is not a command: {error}") from error
    if not words:
        raise InvalidArgument("The command is empty")
    return TextCommand(pattern, line, tuple(words))


def _refuse_foreign(path: str) -> None:
    """Raises InvalidArgument for a file that names programs and that others can write.

    Who may write in its directory can put another file in its place.
    """
    for what, place in (("it", path), ("its directory", os.path.dirname(path))):
        found = os.stat(place)
        if found.st_uid not in {0, os.geteuid()}:
            raise _invalid(path, f"{what} belongs to another user, and it names programs to run")
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise _invalid(path, f"every user can write to {what}, and it names programs to run")


def _of_user() -> list[Setting]:
    from treesnap.results import Setting, SettingSource

    return [Setting(name, value, SettingSource.USER) for name, value in _user_values().items()]


def change_of_user(key: str, value: str | None) -> None:
    """Writes or removes a setting in the user's own file; durable after return.

    Raises InvalidArgument for a value or a file that cannot be used, and without a home directory.
    """
    import tomlkit

    path = user_config_path()
    if path is None:
        raise InvalidArgument("There is no home directory to keep settings of a user in")
    if value is not None:
        _check_of_user(key, value)
    _user_values()
    table_name, _, name = key.partition(".")
    fs, place = LocalFileSystem(), os.path.realpath(path)
    document = tomlkit.parse(_load(fs, place))
    table = document.setdefault(table_name, tomlkit.table())
    table.pop(name, None)
    if value is not None:
        table[name] = value
    if not table:
        document.pop(table_name)
    text = tomlkit.dumps(document)
    _require_readable(place, text)
    if not text.strip():
        unlink_if_present(fs, place)
        return
    directory = os.path.dirname(place)
    with reported("write the settings"):
        ensure_directories(fs, directory)
        replace_file(fs, place, text.encode(), temporary=directory)


def _setting(name: str, sources: _Sources) -> Setting:
    from treesnap.results import Setting, SettingSource

    for source, values in sources:
        if name in values:
            return Setting(name, KEYS[name].text(values[name]), source)
    default = KEYS[name].default
    text = KEYS[name].text(default) if default not in (None, ()) else None
    return Setting(name, text, SettingSource.DEFAULT)


def _store_path(session: Session) -> str:
    return session.store.layout.config


def _root_path(session: Session) -> str:
    return session.root.file("config.toml")


def _load(fs: ReadingFileSystem, path: str) -> str:
    """Returns a file's text, empty when there is none; does not block on a pipe in its place."""
    try:
        if not stat.S_ISREG(fs.lstat(path).st_mode):
            raise _invalid(path, "it is not a regular file")
        data = read_file(fs, path, _FILE_SIZE_MAX)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _invalid(path, error.strerror or str(error)) from error
    if len(data) > _FILE_SIZE_MAX:
        raise _invalid(path, f"it is larger than {size_text(_FILE_SIZE_MAX)}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _invalid(path, f"it is not UTF-8: {error.reason}") from error


def _require_readable(path: str, text: str) -> None:
    """Raises InvalidArgument for a text that :func:`_load` would refuse, before it is written."""
    if len(text.encode()) > _FILE_SIZE_MAX:
        raise InvalidArgument(
            f"The settings in {quoted(path)} would be larger than {size_text(_FILE_SIZE_MAX)}",
            path=path,
        )


def _read(fs: ReadingFileSystem, path: str) -> dict[str, Any]:
    """Returns the values of a file by key, checked; an absent file has none."""
    return {name: _value(path, name, value) for name, value in _flat(_document(fs, path))}


def _document(fs: ReadingFileSystem, path: str) -> dict[str, Any]:
    text = _load(fs, path)
    if not text:
        return {}
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number may have too many digits, too
        raise _invalid(path, str(error)) from error


def _flat(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in document.items():
        if "." in name:
            rows.append((f'"{name}"', value))  # no setting has such a name
        elif isinstance(value, dict):
            rows += [(f"{name}.{inner}", item) for inner, item in value.items()]
        else:
            rows.append((name, value))
    return rows


def _value(path: str, name: str, value: Any) -> Any:
    key = KEYS.get(name)
    if key is None and name.startswith(tuple(_OF_USER)):
        raise _invalid(path, f"only a user's own settings may have {name}")
    if key is None:
        raise _invalid(path, f"there is no setting {name!r}")
    wanted = key.stored if isinstance(key.stored, tuple) else (key.stored,)
    if type(value) not in wanted:
        raise _invalid(path, f"{name} is a {type(value).__name__}")
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise _invalid(path, f"{name} holds something that is not text")
        with _named(path, name):
            key.check(value)
        return tuple(value)
    if isinstance(value, bool):
        return value
    with _named(path, name):
        return key.parse(str(value))


@contextmanager
def _named(path: str, name: str) -> Iterator[None]:
    try:
        yield
    except InvalidArgument as error:
        raise _invalid(path, f"{name}: {error.message}") from error
    except ValueError as error:
        raise _invalid(path, f"{name} has too many digits") from error


def _invalid(path: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"The settings in {quoted(path)} cannot be used: {why}",
        code=ErrorCode.INVALID_CONFIG,
        path=path,
    )


def _change(session: Session, path: str, name: str, value: str | None) -> None:
    """Writes or removes one setting; durable after return."""
    import tomlkit

    fs = session.fs
    _read(fs, path)
    document = tomlkit.parse(_load(fs, path))
    table_name, _, last = name.rpartition(".")
    if value is None:
        table = document.get(table_name, {}) if table_name else document
        table.pop(last, None)
        if table_name and not table:
            document.pop(table_name, None)
    else:
        if table_name and table_name not in document:
            document[table_name] = tomlkit.table()
        table = document[table_name] if table_name else document
        parsed = KEYS[name].parse(value)
        is_text = KEYS[name].stored in (str, (str, int))
        table[last] = value if is_text else list(parsed) if type(parsed) is tuple else parsed
    text = tomlkit.dumps(document)
    _require_readable(path, text)
    if not text.strip():
        unlink_if_present(fs, path)
        return
    replace_file(fs, path, text.encode(), temporary=session.store.layout.temporary)
