"""Remotes that a store names which may be a stranger's: nothing is sent to them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, RemoteNotNamed
from treesnap.remote import MemberRole, Remotes
from treesnap.remote.blobs.base import Blobs
from treesnap.remote.connection import open_blobs
from treesnap.remote.keys import Secret

pytestmark = pytest.mark.sampled(12)

CONTACTS: dict[str, Callable[[Remotes], object]] = {
    "check": lambda remotes: remotes.check(),
    "histories": lambda remotes: remotes.histories(),
    "push": lambda remotes: remotes.push("evil"),
    "prune": lambda remotes: remotes.prune("evil"),
    "delete": lambda remotes: remotes.delete("evil", "history"),
    "repair": lambda remotes: remotes.repair(),
    "change_secret": lambda remotes: remotes.change_secret(None, secret_of(None)),
    "verify": lambda remotes: remotes.verify(),
    "keys": lambda remotes: remotes.keys(),
    "add_key": lambda remotes: remotes.add_key("evil", lambda: None),
    "remove_key": lambda remotes: remotes.remove_key("evil", "a"),
    "rotate_keys": lambda remotes: remotes.rotate_keys(),
    "collect": lambda remotes: remotes.collect(),
    "snapshots": lambda remotes: remotes.snapshots(),
    "fetch": lambda remotes: remotes.fetch(),
    "pull": lambda remotes: remotes.pull(),
    "export_keys": lambda remotes: remotes.export_keys(),
    "invite": lambda remotes: remotes.invite("evil", MemberRole.WRITER),
    "members": lambda remotes: remotes.members(),
    "demote": lambda remotes: remotes.demote("evil", "machine"),
    "revoke": lambda remotes: remotes.revoke("evil", "machine"),
    "receive": lambda remotes: remotes.receive(),
}
QUIET = {"add", "clone", "deliver", "list", "policy", "remove"}
"""Those that ask no server, and those that name one."""


def secret_of(_known):
    return lambda: Secret.passphrase("correct horse")


class Places:
    """Opens directories, and remembers which."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def __call__(self, url: str, *, make: bool = False) -> Blobs:
        self.urls.append(url)
        return open_blobs(url, make=make)


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this user's own settings, which is absent."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return tmp_path / "configuration/treesnap/config.toml"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


@pytest.fixture
def handle(tmp_path: Path, url: str) -> treesnap.Handle:
    """A root, with the copy of a store that knows a remote."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_text("text")
    own = treesnap.open(tmp_path / "root", tmp_path / "own")
    own.create()
    remotes = Remotes(own, secret_of)
    remotes.add("evil", url)
    remotes.push()
    shutil.copytree(tmp_path / "own", tmp_path / "store")
    return treesnap.open(tmp_path / "root", tmp_path / "store")


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def remotes(handle: treesnap.Handle, places: Places) -> Remotes:
    return Remotes(handle, secret_of, places)


@pytest.mark.parametrize("what", CONTACTS)
def test_none_is_contacted(remotes, places, url, what):
    with pytest.raises(RemoteNotNamed) as caught:
        CONTACTS[what](remotes)

    assert places.urls == []
    assert caught.value.code == ErrorCode.STORE_NOT_OWN
    assert f"'{url}'" in caught.value.message


def test_every_method_is_looked_at():
    assert {name for name in vars(Remotes) if not name.startswith("_")} == {*CONTACTS, *QUIET}


def test_a_clone_by_its_name_is_not_contacted(tmp_path, handle, places):
    remotes = Remotes(treesnap.open(tmp_path / "new", handle.store_path), secret_of, places)

    with pytest.raises(RemoteNotNamed):
        remotes.clone("evil")

    assert places.urls == []


def test_a_clone_by_an_address_is_what_the_user_says(tmp_path, handle, places, url):
    remotes = Remotes(treesnap.open(tmp_path / "new", handle.store_path), secret_of, places)

    remotes.clone(url)

    assert (tmp_path / "new/file").read_text() == "text"


def test_what_asks_no_server_works(remotes, url):
    assert [item.url for item in remotes.list()] == [url]
    remotes.remove("evil")
    with pytest.raises(NotFound):
        remotes.check()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("safe-remote", "true"), ("passphrase-file", "/x"), ("passphrase-command", "pass")],
)
def test_one_that_the_users_own_settings_name_is_contacted(
    handle, remotes, places, url, setting, value
):
    handle.config(f"{setting}.{url}", value)

    remotes.push()

    assert places.urls == [url]
    handle.config(f"{setting}.{url}x", value)
    handle.config(f"{setting}.{url}", unset=True)
    with pytest.raises(RemoteNotNamed):
        remotes.push()


@pytest.mark.parametrize("value", ["false", "yes", ""])
def test_nothing_else_says_so(handle, url, settings, value):
    with pytest.raises(InvalidArgument):
        handle.config(f"safe-remote.{url}", value)

    assert not settings.exists()


def test_a_store_that_the_user_trusts_leads_to_its_remotes(handle, remotes, places, url):
    handle.store_trust()

    remotes.push()

    assert places.urls == [url]
