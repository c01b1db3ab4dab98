"""Requests that are repeated for minutes, in a time that tests make up."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from threading import Event

import pytest

from answering import HttpRequest, answering, http_answer, s3_error
from ceph import free_ports
from sampling import sized
from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote.blobs import bucket
from treesnap.remote.blobs.bucket import BucketBlobs, parse_bucket_url
from treesnap.remote.blobs.retries import PAUSE_MAX_S, PAUSE_MIN_S, Repeater, Retries

pytestmark = pytest.mark.usefixtures("bucket_environment")

NAMES = [f"state/{number:04x}" for number in range(1002)]


class Time:
    """Passes only during pauses."""

    def __init__(self, passes: Callable[[float], None] = lambda _now_s: None) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.told: list[str] = []
        self._passes = passes

    def wait(self, _event: Event, duration_s: float) -> None:
        self.pauses.append(round(duration_s, 3))
        self.now_s += duration_s
        self._passes(self.now_s)

    def retries(self, for_s: float = 300.0, random: bytes = b"\xff") -> Retries:
        return Retries(
            for_s, self.told.append, lambda: self.now_s, self.wait, lambda size: random * size
        )


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Those of the library below, which are real."""
    pauses = {name: dt.timedelta(milliseconds=1) for name in ("init_backoff", "max_backoff")}
    monkeypatch.setattr(bucket, "_REPEATING_BRIEFLY", {"max_retries": 1, "backoff": pauses})


def gone(*, may_pass: bool = True) -> RemoteFailed:
    return RemoteFailed("The server is gone", may_pass=may_pass)


def test_a_request_is_repeated_until_the_server_is_there_again():
    time = Time()

    def send() -> str:
        if time.now_s < 60:
            raise gone()
        return "done"

    assert Repeater(time.retries()).repeated(send) == "done"
    assert time.pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S]


def test_pauses_are_random():
    time = Time()

    def send() -> None:
        if len(time.pauses) < 9:
            raise gone()

    Repeater(time.retries(random=b"\0")).repeated(send)

    assert set(time.pauses) == {PAUSE_MIN_S}


def test_after_five_minutes_it_is_given_up():
    time = Time()

    def send() -> None:
        raise gone()

    with pytest.raises(RemoteFailed, match="is gone"):
        Repeater(time.retries()).repeated(send)

    assert 300 - PAUSE_MAX_S <= time.now_s <= 300


@pytest.mark.parametrize(("for_s", "may_pass"), [(0, True), (300, False)])
def test_what_will_not_pass_is_said_at_once_and_so_is_anything_if_the_user_wants_that(
    for_s, may_pass
):
    time = Time()

    def send() -> None:
        raise gone(may_pass=may_pass)

    with pytest.raises(RemoteFailed):
        Repeater(time.retries(for_s)).repeated(send)

    assert time.now_s == 0
    assert time.told == []


def test_the_user_is_told_once_that_a_command_waits_and_not_of_an_outage_of_seconds():
    time = Time()
    repeater = Repeater(time.retries())
    until_s = 2.5

    def send() -> None:
        if time.now_s < until_s:
            raise gone()

    repeater.repeated(send)
    assert time.told == []
    until_s = 100.0
    repeater.repeated(send)
    assert time.told == ["The server is gone; it is tried again for 297 s"]
    until_s = 200.0
    repeater.repeated(send)
    assert len(time.told) == 2


def test_a_pause_ends_when_a_command_gives_up():
    """Real pauses, of which none is waited for."""
    repeater = Repeater(Retries(random=lambda size: b"\xff" * size))
    failures: list[RemoteFailed] = []

    def work() -> None:
        try:
            repeater.repeated(send)
        except RemoteFailed as error:
            failures.append(error)

    sent = Event()

    def send() -> None:
        sent.set()
        raise gone()

    thread = threading.Thread(target=work)
    thread.start()
    sent.wait()
    repeater.give_up()
    thread.join(20)

    assert len(failures) == 1


# ----------------------------------------------------------------------- in a bucket


def opened(server_endpoint: str, time: Time) -> BucketBlobs:
    url = parse_bucket_url(f"s3://tests?endpoint={server_endpoint}")
    return BucketBlobs(url, retries=time.retries())


USES = {
    "put": lambda blobs: blobs.put("packs/00", b"x"),
    "get": lambda blobs: blobs.get("packs/00"),
    "get_ranges": lambda blobs: blobs.get_ranges("packs/00", [(0, 1)]),
    "size": lambda blobs: blobs.size_bytes("packs/00"),
    "list": lambda blobs: list(blobs.list("packs/")),
    "delete": lambda blobs: blobs.delete(["packs/00"]),
}


def of_blob(request: HttpRequest) -> bytes:
    """Answers as a server that holds one blob with the content ``x``."""
    if request.method == "POST":
        gone = b"<Deleted><Key>packs/00</Key></Deleted>"
        return http_answer("200 OK", b"<DeleteResult>" + gone + b"</DeleteResult>")
    if "prefix=" in request.target:
        return http_answer("200 OK", b"<ListBucketResult></ListBucketResult>")
    words = {"ETag": '"1"', "Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    if "range" in request.headers:
        return http_answer("206 Partial Content", b"x", Content_Range="bytes 0-0/1", **words)
    return http_answer("200 OK", b"" if request.method == "PUT" else b"x", **words)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_answering", [True, False])
def test_a_server_that_is_gone_for_a_minute_fails_no_request(use, is_answering):
    """It says that it is busy, or connections are cut."""
    time = Time()

    def answer(request: HttpRequest) -> bytes:
        if time.now_s >= 60:
            return of_blob(request)
        return s3_error("503 Slow Down", "SlowDown") if is_answering else b""

    with answering(answer) as server:
        USES[use](opened(server.endpoint, time))

    assert 60 <= time.now_s < 120
    assert len(time.told) == 1


def test_a_connection_that_is_refused_is_tried_again():
    time = Time()
    (port,) = free_ports(1)

    with pytest.raises(RemoteFailed) as failed:
        opened(f"http://127.0.0.1:{port}", time).get("packs/00")

    assert failed.value.code == ErrorCode.REMOTE_UNREACHABLE
    assert time.now_s > 240


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "404 Not Found"])
@pytest.mark.parametrize("is_proven", [True, False])
def test_what_the_server_refuses_is_not_tried_again(status, is_proven):
    time = Time()
    answers = ([of_blob] if is_proven else []) + [s3_error(status, "NoSuchBucket")]

    def answer(request: HttpRequest) -> bytes:
        found = answers[0] if len(answers) == 1 else answers.pop(0)
        return found if isinstance(found, bytes) else found(request)

    with answering(answer) as server:
        blobs = opened(server.endpoint, time)
        if is_proven:
            blobs.put("packs/00", b"x")
        with pytest.raises(RemoteFailed):
            blobs.put("packs/00", b"x")

    assert time.now_s == 0


def test_a_create_is_sent_once_whatever_happens():
    time = Time()
    with answering(s3_error("503 Slow Down", "SlowDown")) as server:
        with pytest.raises(RemoteFailed) as failed:
            opened(server.endpoint, time).create("state/00", b"x")

        assert [request.method for request in server.requests] == ["PUT"]

    assert failed.value.is_unclear
    assert time.now_s == 0


def page(names: list[str], more: str = "") -> bytes:
    keys = "".join(
        f"<Contents><Key>{name}</Key><Size>5</Size><ETag>1</ETag>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        for name in names
    )
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{keys}{token}</ListBucketResult>".encode()


FIRST, SECOND = page(NAMES[:1000], more="next"), page(NAMES[1000:])


@pytest.mark.parametrize("is_length_kept", [True, False])
@pytest.mark.parametrize("size", range(0, len(SECOND), sized(9, 1)))
def test_a_list_that_is_cut_anywhere_is_asked_for_again_after_its_last_whole_name(
    size, is_length_kept
):
    """By the connection, or by something between that says how much it sends."""
    whole = http_answer("200 OK", SECOND)
    cut = whole[: len(whole) - len(SECOND) + size]
    if not is_length_kept:
        cut = http_answer("200 OK", SECOND[:size])
    cuts = iter([cut] * 3)

    def answer(request: HttpRequest) -> bytes:
        if "start-after=state%2F03e7" in request.target or "continuation" in request.target:
            return next(cuts, whole)
        return http_answer("200 OK", FIRST)

    with answering(answer) as server:
        listed = [item.name for item in opened(server.endpoint, Time()).list("state/")]

        assert listed == NAMES
        assert "start-after=state%2F03e7" in server.requests[-1].target
