"""Whose root, whose store: what another user controls is not used in silence."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from calling import Place
from privileges import NOBODY_ID, as_nobody, everything_is_loaded
from state import tree_state
from treesnap.core.model.errors import ErrorCode, InvalidArgument, Refused, WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.remote import Remotes
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(10)

ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser changes owners")
SAFE = "SNAP_SAFE_DIRECTORIES"
OTHER_ID = NOBODY_ID - 1


@pytest.fixture(autouse=True)
def no_safe_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no directory as safe, as most users do."""
    monkeypatch.delenv(SAFE, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of this user."""
    root = tmp_path / "mine"
    root.mkdir()
    (root / "file").write_text("private")
    return root


def refused(root: Path, store: Path) -> Refused:
    """Returns the error with which a create is refused; nothing is written."""
    before = tree_state(store) if store.exists() else None
    with pytest.raises(Refused) as caught:
        treesnap.open(root, store).create()
    assert caught.value.code == ErrorCode.FOREIGN_OWNER
    assert (tree_state(store) if store.exists() else None) == before
    return caught.value


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_store_that_others_can_write_to_is_refused(tmp_path, root, mode):
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    store.chmod(mode)

    error = refused(root, store)

    assert error.message.endswith(f"can be written to by other users: its mode is {mode:04o}")


def test_a_directory_that_is_named_as_safe_is_used(tmp_path, root, monkeypatch):
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    store.chmod(0o770)
    monkeypatch.setenv(SAFE, f"/nowhere:{tmp_path}")

    assert treesnap.open(root, store).create().complete


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this user's own settings, which is absent."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return tmp_path / "configuration" / "treesnap" / "config.toml"


def test_a_directory_that_the_users_own_settings_name_is_used(tmp_path, root, settings):
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    store.chmod(0o770)
    refused(root, store)

    handle = treesnap.open(root, store)
    handle.config("safe-directories", f"/nowhere:{store}")

    assert handle.create().complete
    (found,) = handle.config("safe-directories").settings
    assert (found.value, found.source) == (f"/nowhere:{store}", "user")
    assert settings.read_text() == f'safe-directories = "/nowhere:{store}"\n'
    handle.config("safe-directories", unset=True)
    assert not settings.exists()
    refused(root, store)


@pytest.mark.parametrize("value", ["relative", "", " ", "/good:relative", "/good:"])
def test_a_safe_directory_is_absolute(tmp_path, root, settings, value):
    handle = treesnap.open(root, tmp_path / "store")

    with pytest.raises(InvalidArgument, match=r"empty|not an absolute path"):
        handle.config("safe-directories", value)

    assert not settings.exists()


@pytest.mark.parametrize("place", ["store", "root"])
def test_no_store_and_no_root_says_what_is_safe(tmp_path, root, settings, place):
    store = tmp_path / "store"
    handle = treesnap.open(root, store)
    handle.create()
    (corner,) = (path for path in (store / "roots").iterdir() if path.is_dir())
    file = (store if place == "store" else corner) / "config.toml"
    file.write_text(f'safe-directories = "{store}"\n')

    with pytest.raises(InvalidArgument, match="only a user's own settings may have"):
        handle.config("exclude")

    store.chmod(0o770)
    refused(root, store)


@pytest.mark.parametrize("text", ["safe-directories = 5", "safe-directories = [", "unknown = '/'"])
def test_settings_that_cannot_be_read_name_nothing_as_safe(tmp_path, root, settings, text):
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    settings.parent.mkdir(parents=True)
    settings.write_text(text)
    store.chmod(0o770)

    assert f"The settings in '{settings}' cannot be used" in refused(root, store).message


@pytest.mark.parametrize("words", ["", "relative", "/nowhere", "{store}-not"])
def test_no_other_directory_is_safe(tmp_path, root, monkeypatch, words):
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    store.chmod(0o770)
    monkeypatch.setenv(SAFE, words.format(store=store))

    message = refused(root, store).message

    assert message.endswith("its mode is 0770") == (words != "relative")
    assert ("'relative' in SNAP_SAFE_DIRECTORIES is not an absolute path" in message) == (
        words == "relative"
    )


@pytest.mark.parametrize("name", ["packs", "snapshots", "pending"])
@pytest.mark.parametrize("mode", [0o711, 0o700])
def test_a_directory_in_a_store_is_looked_at_if_others_get_there(tmp_path, root, name, mode):
    store = tmp_path / "store"
    treesnap.open(root, store).create()
    store.chmod(mode)
    (store / name).chmod(0o777)

    if mode == 0o700:
        assert treesnap.open(root, store).create().complete
    else:
        error = refused(root, store)
        assert f"has the directory {name!r}, which other users can write to" in error.message


def link_of_another(tmp_path: Path, target: str | Path) -> Path:
    """Makes a link in a directory of this user's; the link belongs to another one."""
    (tmp_path / "links").mkdir(mode=0o755)
    link = tmp_path / "links" / "link"
    link.symlink_to(target)
    os.chown(link, NOBODY_ID, NOBODY_ID, follow_symlinks=False)
    return link


@ONLY_ROOT
class TestTheSuperuser:
    def test_takes_no_settings_of_another_user(self, tmp_path, root, settings):
        store = tmp_path / "store"
        store.mkdir(mode=0o700)
        settings.parent.mkdir(parents=True)
        settings.write_text('safe-directories = "/"')
        for path in (store, settings):
            os.chown(path, NOBODY_ID, NOBODY_ID)

        refused(root, store)

    def test_does_not_use_the_store_of_another_user(self, tmp_path, root):
        store = tmp_path / "store"
        store.mkdir(mode=0o700)
        os.chown(store, NOBODY_ID, NOBODY_ID)

        error = refused(root, store)

        assert "who may have written anything into it" in error.message

    @pytest.mark.parametrize("place", ["store", "mine"])
    def test_uses_nothing_in_a_directory_of_another_user(self, tmp_path, root, place):
        above = tmp_path / "above"
        above.mkdir(mode=0o755)
        root.rename(above / "mine")
        os.chown(above, NOBODY_ID, NOBODY_ID)
        places = {"store": tmp_path / "store", "mine": above / "mine"}
        if place == "store":
            (above / "mine").rename(root)
            places = {"store": above / "store", "mine": root}

        error = refused(places["mine"], places["store"])

        assert f"lies in {str(above)!r}, which belongs to user" in error.message

    def test_does_not_work_in_the_root_of_another_user(self, tmp_path, root):
        os.chown(root, NOBODY_ID, NOBODY_ID)

        error = refused(root, tmp_path / "store")

        assert "belongs to user" in error.message
        assert not (tmp_path / "store").exists()

    def test_uses_nothing_that_every_user_can_rename(self, tmp_path, root):
        tmp_path.chmod(0o777)

        refused(root, tmp_path / "store")
        tmp_path.chmod(0o1777)

        assert treesnap.open(root, tmp_path / "store").create().complete

    def test_trusts_the_user_that_called_it(self, tmp_path, root, monkeypatch):
        os.chown(root, NOBODY_ID, NOBODY_ID)
        monkeypatch.setenv("SUDO_UID", str(NOBODY_ID))

        assert treesnap.open(root, tmp_path / "store").create().complete

    @pytest.mark.parametrize("place", ["store", "mine", "above"])
    def test_follows_no_link_of_another_user(self, tmp_path, root, place):
        """The link is relative, and one of root's own leads to it."""
        treesnap.open(root, tmp_path / "store").create()
        target = "../" if place == "above" else f"../{place}"
        of_another, mine = link_of_another(tmp_path, target), tmp_path / "my-link"
        mine.symlink_to(of_another)
        places = {"store": tmp_path / "store", "mine": root}
        if place == "above":
            places["store"] = mine / "store"
        else:
            places[place] = mine

        error = refused(places["mine"], places["store"])

        assert f"is reached through the link {str(of_another)!r}, which belongs" in error.message

    def test_follows_a_link_to_what_is_named_as_safe(self, tmp_path, root, monkeypatch):
        monkeypatch.setenv(SAFE, str(root))

        assert treesnap.open(link_of_another(tmp_path, root), tmp_path / "store").create().complete

    @pytest.mark.parametrize("links", [True, False], ids=["link", "directory"])
    @pytest.mark.parametrize("writes", ["fork", "store_copy", "store_move", "export", "archive"])
    def test_writes_where_another_user_leads_it_only_if_asked(self, tmp_path, root, writes, links):
        """What is only exported there needs no trust in who owns the directory."""
        handle = treesnap.open(root, tmp_path / "store")
        handle.create()
        if links:
            of_another = link_of_another(tmp_path, tmp_path / "private")
        else:
            of_another = tmp_path / "of-another"
            of_another.mkdir(mode=0o755)
            os.chown(of_another, NOBODY_ID, NOBODY_ID)
        (tmp_path / "private").mkdir()
        target = of_another / "new.tar"
        calls: dict[str, Callable[[], object]] = {
            "fork": lambda: handle.fork("latest", [target]),
            "store_copy": lambda: handle.store_copy(target),
            "store_move": lambda: handle.store_move(target),
            "export": lambda: handle.restore("latest", to=target),
            "archive": lambda: handle.archive("latest", target),
        }

        if not links and writes in {"export", "archive"}:
            calls[writes]()
            return
        with pytest.raises(Refused) as caught:
            calls[writes]()

        assert caught.value.code == ErrorCode.FOREIGN_OWNER
        assert list((tmp_path / "private").iterdir()) == []
        assert not os.path.lexists(target)

    @pytest.mark.parametrize(
        "words",
        [
            ("restore", "latest", "--to"),
            ("fork", "latest"),
            ("archive", "latest", "-o"),
            ("timeline", "--html"),
            ("remote", "add", "there"),
            ("clone", "REMOTE"),
        ],
    )
    def test_no_command_is_led_elsewhere_by_a_link(self, tmp_path, root, words):
        place = Place(root, tmp_path / "store")
        place.done("create")
        place.done("remote", "add", "mine", str(tmp_path / "remote"))
        place.done("push", "mine")
        (tmp_path / "private").mkdir()
        target = link_of_another(tmp_path, tmp_path / "private") / "new.tar"
        remote = str(tmp_path / "remote")

        ended = place.snap(*(remote if word == "REMOTE" else word for word in words), str(target))

        assert (ended.code, "is reached through the link" in ended.err) == (3, True), ended
        assert list((tmp_path / "private").iterdir()) == []

    @pytest.mark.parametrize("verb", ["list", "recover", "gc", "status", "undo"])
    def test_refuses_to_look_as_well(self, tmp_path, root, verb):
        """Looking finishes an interrupted restore, and a journal can be forged."""
        store = tmp_path / "store"
        treesnap.open(root, store).create()
        os.chown(store, NOBODY_ID, NOBODY_ID)

        with pytest.raises(Refused) as caught:
            getattr(treesnap.open(root, store), verb)()

        assert caught.value.code == ErrorCode.FOREIGN_OWNER


@ONLY_ROOT
@pytest.mark.parametrize(
    ("owner_id", "mode", "why"),
    [
        (OTHER_ID, 0o755, "belongs to user"),
        (OTHER_ID, 0o1777, "belongs to user"),
        (0, 0o777, "in which every user can rename it"),
        (0, 0o1777, None),
        (NOBODY_ID, 0o755, None),
    ],
)
@pytest.mark.parametrize("depth", ["", "below"])
def test_a_user_uses_no_store_that_others_can_replace(
    open_directory, monkeypatch, owner_id, mode, why, depth
):
    """The store is the user's own, and so is the directory right above it where there is one."""
    with monkeypatch.context() as patched:
        patched.setenv(SAFE, str(open_directory))
        everything_is_loaded(open_directory)
    above, root = open_directory / "above", open_directory / "root"
    store = above / depth / "store"
    store.mkdir(parents=True, mode=0o700)
    root.mkdir()
    for path in (root, store, *([above / depth] if depth else [])):
        os.chown(path, NOBODY_ID, NOBODY_ID)
    os.chown(above, owner_id, owner_id)
    above.chmod(mode)

    def create() -> None:
        if why is None:
            assert treesnap.open(root, store).create().complete
            return
        message = refused(root, store).message
        assert f"lies in {str(above)!r}, " in message
        assert why in message
        monkeypatch.setenv(SAFE, str(above))
        assert treesnap.open(root, store).create().complete

    as_nobody(create)


@ONLY_ROOT
def test_a_user_follows_no_link_of_another_one_to_a_store(open_directory, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv(SAFE, str(open_directory))
        everything_is_loaded(open_directory)
    link = link_of_another(open_directory, open_directory / "store")
    os.chown(link, OTHER_ID, OTHER_ID, follow_symlinks=False)
    root = open_directory / "root"

    def create() -> None:
        root.mkdir()
        assert treesnap.open(root, open_directory / "store").create().complete
        with pytest.raises(Refused, match="is reached through the link"):
            treesnap.open(root, link).list()

    as_nobody(create)


@ONLY_ROOT
def test_a_user_does_not_use_the_store_of_another_one(open_directory, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv(SAFE, str(open_directory))
        everything_is_loaded(open_directory)
    store, root = open_directory / "of-another", open_directory / "root"
    store.mkdir()
    os.chown(store, NOBODY_ID - 1, NOBODY_ID - 1)
    store.chmod(0o755)
    os.chown(open_directory, NOBODY_ID, NOBODY_ID)

    def create() -> None:
        root.mkdir()
        (root / "file").write_text("private")
        refused(root, store)

    as_nobody(create)

    assert list(store.iterdir()) == []


@ONLY_ROOT
@pytest.mark.parametrize("what", ["directory", "above"])
def test_the_superuser_pushes_in_the_open_to_no_directory_of_another_user(tmp_path, root, what):
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    disk = tmp_path / "other" / "disk"
    disk.mkdir(parents=True)
    os.chown(disk if what == "directory" else disk.parent, NOBODY_ID, NOBODY_ID)
    remotes = Remotes(handle, lambda _known: lambda: Secret.raw_key("5a" * 32))

    with pytest.raises(Refused, match=pwd.getpwuid(NOBODY_ID).pw_name) as caught:
        remotes.add("disk", str(disk), encrypted=False)

    assert caught.value.code == ErrorCode.FOREIGN_OWNER
    assert list(disk.iterdir()) == []
    remotes.add("disk", str(disk), encrypted=True)
    assert len(remotes.push("disk").snapshots) == 1


@ONLY_ROOT
def test_a_remote_that_was_given_away_is_read_and_not_written(tmp_path, root, monkeypatch):
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o755)
    remotes = Remotes(handle)
    remotes.add("disk", str(disk))
    remotes.push()
    os.chown(disk, NOBODY_ID, NOBODY_ID)
    (root / "file").write_text("more")
    handle.create()

    for change in (remotes.push, lambda: remotes.prune(policy=treesnap.Policy(keep_last=1))):
        with pytest.raises(Refused) as caught:
            change()
        assert caught.value.code == ErrorCode.FOREIGN_OWNER
    assert len(remotes.histories()) == 1

    monkeypatch.setenv(SAFE, str(disk))
    assert len(remotes.push().snapshots) == 1


@ONLY_ROOT
@pytest.mark.parametrize("what", ["directory", "above", "link"])
def test_a_user_pushes_in_the_open_to_no_directory_of_another_one(open_directory, what):
    everything_is_loaded(open_directory)
    root, disk = open_directory / "root", open_directory / "other" / "disk"
    for path in (root, disk):
        path.mkdir(parents=True)
    disk.chmod(0o775)
    os.chown(disk, OTHER_ID, NOBODY_ID)
    if what != "directory":
        os.chown(disk, NOBODY_ID, NOBODY_ID)
        os.chown(disk.parent, OTHER_ID if what == "above" else 0, 0)
    link = open_directory / "link"
    link.symlink_to(disk)
    os.chown(link, OTHER_ID, OTHER_ID, follow_symlinks=False)
    url = str(link if what == "link" else disk)
    os.chown(root, NOBODY_ID, NOBODY_ID)
    (open_directory / "private").mkdir()
    os.chown(open_directory / "private", NOBODY_ID, NOBODY_ID)

    def action() -> None:
        handle = treesnap.open(root, open_directory / "private" / "store")
        handle.create()
        with pytest.raises(Refused) as caught:
            Remotes(handle).add("disk", url)
        assert caught.value.code == ErrorCode.FOREIGN_OWNER
        assert list(disk.iterdir()) == []
        os.environ[SAFE] = str(open_directory)
        Remotes(handle).add("disk", url)
        assert len(Remotes(handle).push("disk").snapshots) == 1

    as_nobody(action)


@pytest.mark.parametrize("mode", [0o707, 0o777, 0o1777])
def test_a_directory_that_everyone_may_write_to_is_no_remote_in_the_open(
    tmp_path, root, monkeypatch, mode
):
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    disk = tmp_path / "disk"
    disk.mkdir()
    remotes = Remotes(handle, lambda _known: lambda: Secret.raw_key("5a" * 32))
    remotes.add("disk", str(disk), encrypted=False)
    before = tree_state(disk)
    disk.chmod(mode)

    with pytest.raises(Refused, match=f"its mode is {mode:04o}") as caught:
        remotes.push("disk")

    assert caught.value.code == ErrorCode.FOREIGN_OWNER
    assert {*tree_state(disk)} == {*before}
    monkeypatch.setenv(SAFE, str(disk))
    assert len(remotes.push("disk").snapshots) == 1


def test_a_directory_that_its_group_may_write_to_is_a_remote(tmp_path, root):
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o2770)
    remotes = Remotes(handle)
    remotes.add("disk", str(tmp_path / "disk"))

    assert len(remotes.push("disk").snapshots) == 1


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o711])
def test_a_directory_that_others_can_read_is_named_when_it_is_added(tmp_path, root, mode):
    monitor = CollectingMonitor()
    handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(mode)
    remotes = Remotes(handle, lambda _known: lambda: Secret.raw_key("5a" * 32))

    remotes.add("sealed", str(tmp_path / "sealed"), encrypted=True)
    remotes.add("new", str(tmp_path / "new"), encrypted=False)
    assert WarningCode.REMOTE_READABLE not in monitor.codes
    remotes.add("disk", str(tmp_path / "disk"), encrypted=False)

    assert (WarningCode.REMOTE_READABLE in monitor.codes) == (mode in {0o755, 0o750})
