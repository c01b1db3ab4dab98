"""``config``: the settings of a store, of a root and of a user, each in a TOML file.

A setting of the root wins over that of the store, and both over the default. People may edit
the files: a change keeps comments and order. What cannot be understood is refused with the
file's name before it has any effect.

Those of a user are in ``user_settings``; one in the file of a store or a root is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treesnap.core.fs.base import ReadingFileSystem
from treesnap.core.model.errors import InvalidArgument, StoreMissing
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import format_duration, format_size, parse_duration, parse_size
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.type_names import TYPE_CHECKING, Any
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.settings_file import (
    document_of,
    flat,
    invalid,
    load,
    named,
    save,
)
from treesnap.core.ops.user_settings import SHOWN_NAMES, change_of_user, is_of_user, user_values
from treesnap.core.store.lock import locked_roots
from treesnap.core.store.maintenance.retention import AUTOMATIC, DEFAULT, Policy
from treesnap.core.worktree.scan.ignore import given

if TYPE_CHECKING:
    from treesnap.core.model.results import ConfigResult, Setting, SettingSource

    _Sources = tuple[tuple[SettingSource, dict[str, Any]], ...]

_COUNT_MAX = 10**9


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
        raise InvalidArgument(f"{text!r} is not a whole number from 0 to {_COUNT_MAX:,}")
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
    "ask-above": Key(parse_size, (str, int), format_size, 1 << 30),
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
    first_size_bytes: int
    """From which size on the first snapshot of the root is told of."""
    excluded: tuple[str, ...]
    """Patterns of what no snapshot holds, beside those of ignore files."""

    def completed(self, request: CaptureRequest) -> CaptureRequest:
        """Returns a request with what these add to it; what the caller said counts more."""
        limit = request.max_size_bytes
        return request._replace(
            rules=given((*self.excluded, *request.exclude)),
            max_size_bytes=limit if limit is not None else self.store_size_bytes_max,
            first_size_bytes=self.first_size_bytes,
        )


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
        first_size_bytes=values["ask-above"],
        excluded=values["exclude"],
    )


def config(
    context: Context, key: str | None, value: str | None, *, for_root: bool, unset: bool
) -> ConfigResult:
    """Shows or changes settings; see :meth:`treesnap.Handle.config`."""
    from treesnap.core.model.results import ConfigResult, Setting, SettingSource

    if key is not None and key not in KEYS and not is_of_user(key):
        names = ", ".join([*KEYS, *SHOWN_NAMES])
        raise InvalidArgument(f"There is no setting {key!r}; there are: {names}")
    changes = value is not None or unset
    if changes and key is None:
        raise InvalidArgument("The setting to change is not named")
    if value is not None and unset:
        raise InvalidArgument("A setting is either given a value or unset, not both")
    if key is not None and is_of_user(key):
        if for_root:
            raise InvalidArgument(f"{key} holds for all roots of its user, not for one")
        if changes:
            change_of_user({key: value})
        of_user = [item for item in _of_user() if item.key == key]
        return ConfigResult(tuple(of_user or [Setting(key, None, SettingSource.DEFAULT)]))
    if value is not None and key is not None:
        KEYS[key].parse(value)
    try:
        doing = "change a setting" if changes else "read the settings"
        with opened(context, doing, create=changes, recover=False) as session:
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


def _of_user() -> list[Setting]:
    from treesnap.core.model.results import Setting, SettingSource

    return [Setting(name, value, SettingSource.USER) for name, value in user_values().items()]


def _setting(name: str, sources: _Sources) -> Setting:
    from treesnap.core.model.results import Setting, SettingSource

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


def _read(fs: ReadingFileSystem, path: str) -> dict[str, Any]:
    """Returns the values of a file by key, checked; an absent file has none."""
    return {name: _value(path, name, value) for name, value in flat(document_of(fs, path))}


def _value(path: str, name: str, value: Any) -> Any:
    key = KEYS.get(name)
    if key is None and is_of_user(name):
        raise invalid(path, f"only a user's own settings may have {name}")
    if key is None:
        raise invalid(path, f"there is no setting {name!r}")
    types = key.stored if isinstance(key.stored, tuple) else (key.stored,)
    if type(value) not in types:
        raise invalid(path, f"{name} is a {type(value).__name__}")
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise invalid(path, f"{name} holds something that is not text")
        with named(path, name):
            key.check(value)
        return tuple(value)
    if isinstance(value, bool):
        return value
    with named(path, name):
        return key.parse(str(value))


def _change(session: Session, path: str, name: str, value: str | None) -> None:
    """Writes or removes one setting; durable after return."""
    import tomlkit

    fs = session.fs
    _read(fs, path)
    document = tomlkit.parse(load(fs, path))
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
    save(fs, path, tomlkit.dumps(document), temporary=session.store.layout.temporary)
