"""Blobs in a bucket: which requests are sent, and what their failures mean."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import socket
import ssl
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from answering import answering, http_answer, s3_error
from ceph import free_ports
from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed
from treesnap.remote.blobs import bucket
from treesnap.remote.blobs.base import NEAR_BYTES, BlobMissing
from treesnap.remote.blobs.bucket import BucketBlobs, BucketUrl, diagnose, parse_bucket_url
from treesnap.testing.children import in_child

pytestmark = [pytest.mark.usefixtures("bucket_environment", "short_pauses"), pytest.mark.sampled(2)]

WRITTEN = http_answer("200 OK", ETag='"1"')
NO_KEY = s3_error("404 Not Found", "NoSuchKey")
BUSY = s3_error("503 Slow Down", "SlowDown", "Please reduce your request rate.")


@pytest.fixture
def short_pauses(monkeypatch):
    """Repeats requests as often as ever, without seconds between them."""
    pauses = {
        "init_backoff": dt.timedelta(milliseconds=1),
        "max_backoff": dt.timedelta(milliseconds=5),
    }
    monkeypatch.setattr(bucket, "_REPEATING", {"backoff": pauses})


def found(body: bytes, **headers: str) -> bytes:
    named = {"ETag": '"1"', "Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT", **headers}
    return http_answer(
        "206 Partial Content" if "Content_Range" in named else "200 OK", body, **named
    )


def part(body: bytes, start: int, total: int) -> bytes:
    return found(body, Content_Range=f"bytes {start}-{start + len(body) - 1}/{total}")


def page(*keys: str, more: str = "") -> bytes:
    """Returns a page of a listing; ``more`` is the token of the next one."""
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>5</Size><ETag>1</ETag>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    body = f"<ListBucketResult>{contents}{token}</ListBucketResult>"
    return http_answer("200 OK", body.encode())


def opened(server, **options) -> BucketBlobs:
    return BucketBlobs(parse_bucket_url(f"s3://tests/pre?endpoint={server.endpoint}"), **options)


def methods(server) -> list[str]:
    return [request.method for request in server.requests]


def failure(use) -> RemoteFailed:
    with pytest.raises(RemoteFailed) as caught:
        use()
    return caught.value


def list_all(blobs):
    return [item.name for item in blobs.list("state/")]


# ------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket", BucketUrl("s3", "bucket")),
        ("s3://bucket/", BucketUrl("s3", "bucket")),
        ("s3://my.bucket/a/b/", BucketUrl("s3", "my.bucket", "a/b")),
        (
            "s3://bucket/a?endpoint=http://[::1]:9000&region=eu-west-1",
            BucketUrl("s3", "bucket", "a", "http://[::1]:9000", "eu-west-1"),
        ),
        ("gs://bucket/a", BucketUrl("gs", "bucket", "a")),
        ("az://box/a?account=me", BucketUrl("az", "box", "a", None, None, "me")),
    ],
)
def test_an_address_is_understood(text, url):
    assert parse_bucket_url(text) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://bucket", "does not begin with s3://"),
        ("bucket", "does not begin with s3://"),
        ("s3://", "not the name of a bucket"),
        ("s3://bucket:80/a", "not the name of a bucket"),
        ("s3://b%20cket", "not the name of a bucket"),
        ("s3://bucket/a//b", "a path that no bucket can have"),
        ("s3://bucket/a/../b", "a path that no bucket can have"),
        ("s3://bucket/a#b", "a path that no bucket can have"),
        ("s3://bucket?account=x", "Option 'account'"),
        ("s3://bucket?region=", "Option 'region'"),
        ("s3://bucket?region=a&region=b", "Option 'region'"),
        ("s3://bucket?region", "is not a URL"),
        ("s3://[bucket", "is not a URL"),
        ("gs://bucket?region=x", "Option 'region'"),
        ("s3://bucket?endpoint=localhost:9000", "not of the form http"),
        ("s3://bucket?endpoint=ftp://localhost", "not of the form http"),
        ("s3://bucket?endpoint=http://", "not of the form http"),
        ("s3://bucket?endpoint=http://bad host", "not of the form http"),
        ("s3://bucket?endpoint=http://[::1", "not of the form http"),
        ("s3://bucket?endpoint=http://host:port", "not of the form http"),
    ],
)
def test_an_address_that_cannot_be_is_refused(text, message):
    with pytest.raises(InvalidArgument, match=message):
        parse_bucket_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA:hush@bucket/a",
        "https://AKIA:hush@bucket/a",
        "s3://bucket?secret_access_key=hush",
        "s3://bucket?hush",
        "s3://bucket?endpoint=http://AKIA:hush@host",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(text):
    with pytest.raises(InvalidArgument) as caught:
        parse_bucket_url(text)

    assert "hush" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


def test_an_address_is_shown_with_its_endpoint():
    assert str(BucketUrl("s3", "bucket", "a")) == "s3://bucket/a"
    assert str(BucketUrl("s3", "bucket", "", "http://host")) == "s3://bucket at http://host"


# ------------------------------------------------------------------------- requests


def test_a_blob_is_written_with_one_request():
    with answering(WRITTEN) as server:
        opened(server).put("packs/00", b"x" * (9 << 20))

    (request,) = server.requests
    assert (request.method, request.target) == ("PUT", "/tests/pre/packs/00")
    assert len(request.body) == 9 << 20
    assert "if-none-match" not in request.headers


def test_a_blob_is_created_with_one_request_that_says_so():
    with answering(WRITTEN) as server:
        assert opened(server).create("packs/00", b"x" * (9 << 20))

    (request,) = server.requests
    assert (request.method, len(request.body)) == ("PUT", 9 << 20)
    assert request.headers["if-none-match"] == "*"


def test_what_is_no_name_is_refused_without_a_request():
    with answering(WRITTEN) as server:
        blobs = opened(server)
        for use in (blobs.get, blobs.size_bytes, lambda name: blobs.delete(["packs/00", name])):
            with pytest.raises(ValueError, match="is not the name of a blob"):
                use("packs/../../others/00")

    assert server.requests == []


def test_google_and_azure_are_asked_in_their_own_words(monkeypatch):
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    with answering(http_answer("201 Created", ETag='"1"', Last_Modified="x")) as server:
        for url in ("gs://tests/pre?", "az://tests/pre?account=me&"):
            blobs = BucketBlobs(parse_bucket_url(f"{url}endpoint={server.endpoint}"))
            assert blobs.create("packs/00", b"x")

    google, azure = (request.headers for request in server.requests)
    assert google["x-goog-if-generation-match"] == "0"
    assert google["authorization"] == "Bearer token"
    assert azure["if-none-match"] == "*"


@pytest.mark.parametrize(
    "answer",
    [
        s3_error("412 Precondition Failed", "PreconditionFailed"),
        s3_error("409 Conflict", "ConditionalRequestConflict"),
    ],
    ids=["412", "409"],
)
def test_what_exists_or_is_being_written_is_not_created(answer):
    with answering(answer) as server:
        assert opened(server).create("state/00", b"x") is False

    assert methods(server) == ["PUT"]


CUT = b"HTTP/1.1 200 OK\r\nContent-Le"
UNCLEAR = [
    (BUSY, ErrorCode.REMOTE_THROTTLED),
    (s3_error("500 Oops", "InternalError"), ErrorCode.REMOTE_FAILED),
    (s3_error("429 Too Many", "TooManyRequests"), ErrorCode.REMOTE_THROTTLED),
    (s3_error("408 Request Timeout", "x"), ErrorCode.REMOTE_FAILED),
    (http_answer("200 OK"), ErrorCode.REMOTE_FAILED),
    (b"", ErrorCode.REMOTE_UNREACHABLE),
    (CUT, ErrorCode.REMOTE_UNREACHABLE),
]
UNCLEAR_IDS = ["503", "500", "429", "408", "no etag", "closed", "cut"]


@pytest.mark.parametrize(("answer", "code"), UNCLEAR, ids=UNCLEAR_IDS)
@pytest.mark.parametrize("is_proven", [False, True])
def test_a_create_that_fails_is_not_repeated_and_unclear(answer, code, is_proven):
    with answering(page(), answer) as server:
        blobs = opened(server)
        if is_proven:
            list_all(blobs)
        else:
            list_all(opened(server))
        error = failure(lambda: blobs.create("state/00", b"x"))

    assert (error.code, error.is_unclear) == (code, True)
    assert methods(server) == ["GET", "PUT"]


@pytest.mark.parametrize(
    "answer",
    [BUSY, s3_error("500 Oops", "InternalError"), b"", CUT],
    ids=["503", "500", "closed", "cut"],
)
@pytest.mark.parametrize("is_proven", [False, True])
def test_other_requests_are_repeated(answer, is_proven):
    with answering(page(), answer, WRITTEN, answer, found(b"content")) as server:
        blobs = opened(server)
        if is_proven:
            list_all(blobs)
        else:
            list_all(opened(server))
        blobs.put("packs/00", b"x")
        assert blobs.get("packs/00") == b"content"

    assert methods(server) == ["GET", "PUT", "PUT", "GET", "GET"]


def test_a_blob_of_which_a_half_arrived_is_read_again():
    half = found(b"content").removesuffix(b"tent")
    with answering(page(), half, part(b"tent", 3, 7)) as server:
        blobs = opened(server)
        list_all(blobs)

        assert blobs.get("packs/00") == b"content"


def test_near_ranges_are_read_with_one_request():
    with answering(lambda request: part(b"abcdefghij", 5, 100)) as server:
        read = opened(server).get_ranges("packs/00", [(8, 2), (5, 1), (14, 1), (7, 0)])

    assert list(read) == [b"de", b"a", b"j", b""]
    assert [request.headers["range"] for request in server.requests] == ["bytes=5-14"]


def test_far_ranges_are_read_with_several_requests():
    def answer(request):
        start = int(request.headers["range"].removeprefix("bytes=").partition("-")[0])
        return part(b"ab", start, 9 * NEAR_BYTES)

    with answering(answer) as server:
        read = opened(server).get_ranges("packs/00", [(3 * NEAR_BYTES, 2), (0, 2)])

    assert list(read) == [b"ab", b"ab"]
    assert len(server.requests) == 2


def test_ranges_past_the_end_are_empty_whatever_the_server_says_of_them():
    def answer(request):
        if request.headers["range"] == "bytes=0-8":
            return part(b"content", 0, 7)
        return s3_error("416 Range Not Satisfiable", "InvalidRange")

    with answering(answer) as server:
        blobs = opened(server)
        far = 2 * NEAR_BYTES

        assert list(blobs.get_ranges("packs/00", [(far, 3)])) == [b""]
        assert list(blobs.get_ranges("packs/00", [(far, 3), (0, 9)])) == [b"", b"content"]


def test_a_server_that_ignores_ranges_is_not_believed():
    with answering(found(b"content")) as server:
        error = failure(lambda: opened(server).get_ranges("packs/00", [(2, 3)]))

    assert (error.code, "non-partial" in error.message) == (ErrorCode.REMOTE_FAILED, True)


def test_a_blob_that_is_too_large_is_refused_before_it_is_read():
    huge = found(b"").replace(b"Content-Length: 0", b"Content-Length: 999999999999")
    with answering(huge) as server:
        error = failure(lambda: opened(server).get("packs/00", 1 << 20))

    assert methods(server) == ["GET"]
    assert "999999999999 bytes, and 1048576 are read at most" in error.message


def test_a_listing_is_read_page_by_page():
    pages = [
        page("pre/state/00", "pre/state/01", more="next"),
        BUSY,
        page("pre/state/02", "pre/state/READ ME", "pre/state/x/03"),
    ]
    with answering(page(), *pages) as server:
        blobs = opened(server)
        list_all(blobs)

        assert list_all(blobs) == ["state/00", "state/01", "state/02"]

    assert ["continuation-token=next" in request.target for request in server.requests] == [
        False,
        False,
        True,
        True,
    ]


def test_a_listing_that_breaks_goes_on_where_it_broke():
    names = [f"state/{number:04x}" for number in range(1001)]
    full = page(*[f"pre/{name}" for name in names[:1000]], more="next")
    broken = s3_error("400 Bad Request", "Whatever")
    with answering(full, broken, page("pre/state/03e8")) as server:
        assert list_all(opened(server)) == names

    assert "start-after=pre%2Fstate%2F03e7" in server.requests[2].target


def test_a_listing_asks_for_no_more_than_it_needs():
    with answering(page("pre/state/05", "pre/state/06")) as server:
        names = [item.name for item in opened(server).list("state/0", after="state/05")]

    assert names == ["state/06"]
    assert "start-after=pre%2Fstate%2F05" in server.requests[0].target
    assert "prefix=pre%2Fstate%2F&" in server.requests[0].target + "&"


def test_a_server_that_does_not_sort_is_refused():
    with answering(page("pre/state/01", "pre/state/00")) as server:
        error = failure(lambda: list_all(opened(server)))

    assert "does not sort" in error.message


def test_a_listing_sends_nothing_before_it_is_read():
    with answering(page()) as server:
        opened(server).list("state/")

    assert server.requests == []


def deleted(request):
    keys = re.findall(rb"<Key>.*?</Key>", request.body)
    inside = b"".join(b"<Deleted>" + key + b"</Deleted>" for key in keys)
    return http_answer("200 OK", b"<DeleteResult>" + inside + b"</DeleteResult>")


def test_many_blobs_are_removed_with_one_request():
    with answering(deleted) as server:
        refused = opened(server).delete([f"packs/{number:04x}" for number in range(1500)])

    assert list(refused) == []
    assert [request.body.count(b"<Key>") for request in server.requests] == [1000, 500]


def test_removing_is_repeated_while_the_server_is_busy():
    with answering(BUSY, BUSY, deleted) as server:
        assert list(opened(server).delete(["packs/00", "packs/01"])) == []

    assert methods(server) == ["POST", "POST", "POST"]


def test_blobs_that_the_server_keeps_are_told():
    locked = (
        b"<DeleteResult><Error><Key>pre/packs/01</Key><Code>AccessDenied</Code>"
        b"<Message>Locked</Message></Error></DeleteResult>"
    )

    def answer(request):
        if request.method == "POST":
            return http_answer("200 OK", locked)
        if request.target.endswith("01"):
            return s3_error("403 Forbidden", "AccessDenied")
        return s3_error("404 Not Found", "NoSuchKey") if "02" in request.target else WRITTEN

    with answering(answer) as server:
        refused = opened(server).delete(["packs/00", "packs/01", "packs/02"])

    assert list(refused) == ["packs/01"]
    assert sorted(methods(server)) == ["DELETE", "DELETE", "DELETE", "POST"]


def test_where_many_cannot_be_removed_at_once_they_are_removed_one_by_one():
    def answer(request):
        return s3_error("501 No", "NotImplemented") if request.method == "POST" else WRITTEN

    with answering(answer) as server:
        blobs = opened(server)
        for _ in range(2):
            assert list(blobs.delete(["packs/00", "packs/01"])) == []

    assert methods(server) == ["POST"] + ["DELETE"] * 4


def test_an_answer_that_makes_no_sense_is_an_error(capfd):
    """obstore panics about a key of its own choice, which it also prints."""
    other = b"<DeleteResult><Error><Key>x</Key><Code>y</Code><Message>z</Message></Error>"
    with answering(http_answer("200 OK", other + b"</DeleteResult>")) as server:
        blobs = opened(server)
        error = failure(lambda: blobs._sent("try", blobs._store(), lambda at: at.delete(["a/0"])))

    assert (error.code, "makes no sense" in error.message) == (ErrorCode.REMOTE_FAILED, True)
    assert "panicked" in capfd.readouterr().err


def test_removing_fails_where_credentials_are_wrong():
    with answering(s3_error("403 Forbidden", "InvalidAccessKeyId")) as server:
        error = failure(lambda: opened(server).delete(["packs/00"]))

    assert (error.code, methods(server)) == (ErrorCode.REMOTE_CREDENTIALS, ["POST"])


def test_google_says_that_what_is_removed_is_missing(monkeypatch):
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    with answering(s3_error("404 Not Found", "NoSuchKey")) as server:
        blobs = BucketBlobs(parse_bucket_url(f"gs://tests?endpoint={server.endpoint}"))

        assert list(blobs.delete(["packs/00", "packs/01"])) == []

    assert methods(server) == ["DELETE", "DELETE"]


# -------------------------------------------------------------- what failures mean

MEANINGS = [
    (s3_error("403 Forbidden", "InvalidAccessKeyId"), ErrorCode.REMOTE_CREDENTIALS),
    (s3_error("403 Forbidden", "SignatureDoesNotMatch"), ErrorCode.REMOTE_CREDENTIALS),
    (s3_error("400 Bad Request", "ExpiredToken"), ErrorCode.REMOTE_CREDENTIALS),
    (s3_error("400 Bad Request", "InvalidToken"), ErrorCode.REMOTE_CREDENTIALS),
    (s3_error("401 Unauthorized", ""), ErrorCode.REMOTE_CREDENTIALS),
    (s3_error("403 Forbidden", "AccessDenied", "Access Denied"), ErrorCode.REMOTE_DENIED),
    (http_answer("403 Forbidden"), ErrorCode.REMOTE_DENIED),
    (s3_error("403 Forbidden", "RequestTimeTooSkewed"), ErrorCode.REMOTE_CLOCK),
    (
        s3_error("403 Forbidden", "AuthenticationFailed", "Request date header too old"),
        ErrorCode.REMOTE_CLOCK,
    ),
    (
        http_answer("301 Moved Permanently", b"", x_amz_bucket_region="eu-west-1"),
        ErrorCode.REMOTE_WRONG_REGION,
    ),
    (
        s3_error("400 Bad Request", "AuthorizationHeaderMalformed", Region="eu-west-1"),
        ErrorCode.REMOTE_WRONG_REGION,
    ),
    (s3_error("400 Bad Request", "AuthorizationHeaderMalformed"), ErrorCode.REMOTE_CREDENTIALS),
    (
        s3_error("400 Bad Request", "IllegalLocationConstraintException"),
        ErrorCode.REMOTE_WRONG_REGION,
    ),
    (s3_error("404 Not Found", "NoSuchBucket"), ErrorCode.REMOTE_MISSING),
    (s3_error("404 Not Found", "ContainerNotFound"), ErrorCode.REMOTE_MISSING),
    (BUSY, ErrorCode.REMOTE_THROTTLED),
    (s3_error("429 Too Many Requests", ""), ErrorCode.REMOTE_THROTTLED),
    (s3_error("403 Forbidden", "QuotaExceeded"), ErrorCode.REMOTE_FULL),
    (s3_error("507 Insufficient Storage", ""), ErrorCode.REMOTE_FULL),
    (s3_error("500 Internal Server Error", "InternalError"), ErrorCode.REMOTE_FAILED),
    (s3_error("400 Bad Request", "Whatever"), ErrorCode.REMOTE_FAILED),
    (b"", ErrorCode.REMOTE_UNREACHABLE),
    (b"SSH-2.0-OpenSSH_9.2\r\n", ErrorCode.REMOTE_UNREACHABLE),
    (CUT, ErrorCode.REMOTE_UNREACHABLE),
    (page("pre/state/00").removesuffix(b">"), ErrorCode.REMOTE_UNREACHABLE),
]


def words_of(value) -> str:
    """Returns what names a case: the last words that tell answers apart."""
    if not isinstance(value, bytes):
        return value.value
    server_code = re.search(rb"<Code>(\w+)", value)
    return (server_code[1] if server_code else value[:16].strip() or b"closed").decode()


CLEAR = {
    ErrorCode.REMOTE_CREDENTIALS,
    ErrorCode.REMOTE_DENIED,
    ErrorCode.REMOTE_CLOCK,
    ErrorCode.REMOTE_WRONG_REGION,
    ErrorCode.REMOTE_MISSING,
}


@pytest.mark.parametrize(("answer", "code"), MEANINGS, ids=words_of)
def test_the_first_request_says_what_is_wrong_at_once_unless_it_may_pass(answer, code):
    with answering(answer) as server:
        error = failure(lambda: list_all(opened(server)))

    assert (error.code, error.endpoint) == (code, server.endpoint)
    assert set(methods(server)) == {"GET"}
    assert len(methods(server)) == 1 or code not in CLEAR
    assert f"'s3://tests/pre at {server.endpoint}'" in error.message


@pytest.mark.parametrize(
    ("answer", "code"), [item for item in MEANINGS if item[1] in CLEAR], ids=words_of
)
def test_what_no_repetition_heals_is_told_by_the_first_request(answer, code):
    for use in (
        lambda blobs: blobs.put("packs/00", b"x"),
        lambda blobs: blobs.create("packs/00", b"x"),
        list_all,
    ):
        with answering(answer) as server:
            error = failure(lambda use=use, server=server: use(opened(server)))

        assert (error.code, error.is_unclear, len(server.requests)) == (code, False, 1)


def test_a_bucket_that_is_missing_is_not_a_missing_blob():
    with answering(s3_error("404 Not Found", "NoSuchBucket")) as server:
        error = failure(lambda: opened(server).get("packs/00"))

    assert error.code == ErrorCode.REMOTE_MISSING


def test_a_missing_blob_is_told_by_one_request():
    with answering(NO_KEY) as server:
        blobs = opened(server)
        for use in (
            lambda: blobs.get("packs/00"),
            lambda: blobs.get_ranges("packs/00", [(0, 4)]),
            lambda: blobs.size_bytes("packs/00"),
        ):
            with pytest.raises(BlobMissing):
                use()

    assert len(server.requests) == 3


def test_messages_say_what_the_server_says():
    answer = s3_error("403 Forbidden", "AccessDenied", "User \x1b[31m may not.")
    with answering(answer) as server:
        error = failure(lambda: opened(server).put("packs/00", b""))

    assert error.message == (
        f"Could not write blob 'packs/00' in 's3://tests/pre at {server.endpoint}': "
        "the server answers AccessDenied: User \\x1b[31m may not"
    )


def test_the_region_of_a_bucket_is_told():
    answer = s3_error("400 Bad Request", "AuthorizationHeaderMalformed", Region="eu-west-1")
    with answering(answer) as server:
        assert "region eu-west-1" in failure(lambda: list_all(opened(server))).message


def test_a_server_that_refuses_connections_is_unreachable():
    (port,) = free_ports(1)
    blobs = BucketBlobs(parse_bucket_url(f"s3://tests?endpoint=http://127.0.0.1:{port}"))

    for use in (
        lambda: list_all(blobs),
        lambda: blobs.create("a/0", b""),
        lambda: blobs.get("a/0"),
    ):
        error = failure(use)

        assert (error.code, error.is_unclear) == (ErrorCode.REMOTE_UNREACHABLE, False)
        assert "Connection refused" in error.message


def test_a_name_that_does_not_resolve_is_unreachable():
    host = "x" * 64 + ".invalid"  # no resolver asks anybody for so long a name
    blobs = BucketBlobs(parse_bucket_url(f"s3://tests?endpoint=http://{host}"))

    error = failure(lambda: blobs.create("a/0", b""))

    assert (error.code, error.is_unclear) == (ErrorCode.REMOTE_UNREACHABLE, False)
    assert "not known" in error.message


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(bucket, "_CHECKING", {"connect_timeout": "10s", "timeout": "50ms"})
    monkeypatch.setattr(bucket, "_WAITING", {"connect_timeout": "10s", "timeout": "50ms"})
    with answering(None) as server:
        blobs = opened(server)
        errors = [
            failure(use) for use in (lambda: list_all(blobs), lambda: blobs.create("a/0", b""))
        ]

    assert [error.code for error in errors] == [ErrorCode.REMOTE_UNREACHABLE] * 2
    assert errors[1].is_unclear
    assert all("did not answer in time" in error.message for error in errors)


def test_a_check_waits_for_seconds_only():
    assert bucket._CHECKING["connect_timeout"] == "2s"


# -------------------------------------------------------------------------- TLS


@contextmanager
def tls_server(address: str = "127.0.0.1", days: int = 1):
    """Yields the port of a server, its own certificate in PEM, and a list of its connections."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=9))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False
        )
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    fd = os.memfd_create("certificate")
    os.write(fd, pem + private)
    context.load_cert_chain(f"/proc/self/fd/{fd}")
    os.close(fd)
    listening = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connections.append(connection)
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True).recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1], pem, connections
    listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    listening.close()


@pytest.mark.parametrize(
    ("address", "days", "is_trusted", "reason"),
    [
        ("127.0.0.1", 1, False, "UnknownIssuer"),
        ("127.0.0.2", 1, True, "NotValidForName"),
        ("127.0.0.1", -1, True, "Expired"),
    ],
)
def test_a_certificate_that_is_not_valid_is_told(address, days, is_trusted, reason):
    with tls_server(address, days) as (port, pem, connections):
        blobs = BucketBlobs(
            parse_bucket_url(f"s3://tests?endpoint=https://127.0.0.1:{port}"),
            root_certificate=pem if is_trusted else None,
        )
        errors = [failure(use) for use in (lambda: list_all(blobs), lambda: blobs.get("packs/00"))]

    for error in errors:
        assert (error.code, error.is_unclear) == (ErrorCode.REMOTE_UNREACHABLE, False)
        assert f"certificate is not valid: {reason}" in error.message
    assert len(connections) == 2


def test_http_has_to_be_asked_for(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    error = failure(lambda: list_all(BucketBlobs(parse_bucket_url("s3://tests"))))

    assert error.code == ErrorCode.REMOTE_UNREACHABLE
    assert "only an endpoint in the URL of the remote may begin with http://" in error.message


# ------------------------------------------------------------------- credentials


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_missing_credentials_are_told_at_once(no_credentials):
    with answering(page()) as server:
        for use in (list_all, lambda blobs: blobs.put("a/0", b"")):
            error = failure(lambda use=use: use(opened(server)))

            assert error.code == ErrorCode.REMOTE_CREDENTIALS
            assert "no credentials are set" in error.message

    assert server.requests == []


def test_a_metadata_service_without_credentials_gives_none(no_credentials, monkeypatch):
    with answering(http_answer("404 Not Found")) as service, answering(page()) as server:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.endpoint)
        error = failure(lambda: list_all(opened(server)))

    assert error.code == ErrorCode.REMOTE_CREDENTIALS


@pytest.mark.parametrize(
    ("url", "variables", "message"),
    [
        ("s3://tests", {"AWS_ACCESS_KEY_ID": "key"}, "Missing SecretAccessKey"),
        ("s3://tests", {"AWS_SECRET_ACCESS_KEY": "key"}, "Missing AccessKeyId"),
        ("gs://tests", {"GOOGLE_SERVICE_ACCOUNT": "/absent"}, "No such file or directory"),
        ("gs://tests", {"GOOGLE_SERVICE_ACCOUNT": __file__}, "Unable to decode"),
        ("az://tests", {}, "Account must be specified"),
        ("az://tests?account=me", {"AZURE_STORAGE_ACCOUNT_KEY": "x y"}, "Invalid Access Key"),
    ],
)
def test_credentials_that_cannot_be_used_are_told_before_the_first_request(
    no_credentials, monkeypatch, url, variables, message
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    error = failure(lambda: BucketBlobs(parse_bucket_url(url)))

    assert error.code == ErrorCode.REMOTE_CREDENTIALS
    assert message in error.message


def test_a_certificate_that_is_none_is_refused():
    with pytest.raises(InvalidArgument, match="No certificates found"):
        BucketBlobs(parse_bucket_url("s3://tests"), root_certificate=b"junk")


def test_a_profile_that_is_not_named_is_not_read(no_credentials):
    (no_credentials / ".aws").mkdir()
    profile = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    (no_credentials / ".aws" / "credentials").write_text(profile)

    with answering(page()) as server:
        assert failure(lambda: list_all(opened(server))).code == ErrorCode.REMOTE_CREDENTIALS


def test_credentials_may_come_from_a_function(no_credentials):
    def credentials():
        return {"access_key_id": "one", "secret_access_key": "two", "expires_at": None}

    with answering(page()) as server:
        list_all(opened(server, credentials=credentials))

    assert "Credential=one/" in server.requests[0].headers["authorization"]


def test_a_function_that_has_no_credentials_is_told(no_credentials):
    def credentials():
        raise RuntimeError("the command exited with code 1")

    with answering(page()) as server:
        error = failure(lambda: list_all(opened(server, credentials=credentials)))

    assert error.code == ErrorCode.REMOTE_CREDENTIALS
    assert "the command exited with code 1" in error.message


def test_the_region_is_part_of_what_is_signed():
    with answering(page()) as server:
        url = f"s3://tests?endpoint={server.endpoint}&region=eu-north-1"
        list_all(BucketBlobs(parse_bucket_url(url)))

    assert "/eu-north-1/s3/" in server.requests[0].headers["authorization"]


def test_no_secret_of_azure_is_in_an_error(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2024&sig=very-secret")
    with answering(s3_error("403 Forbidden", "AuthenticationFailed")) as server:
        blobs = BucketBlobs(parse_bucket_url(f"az://tests?account=me&endpoint={server.endpoint}"))
        error = failure(lambda: blobs.put("packs/00", b""))

    assert "very-secret" in server.requests[0].target
    assert error.code == ErrorCode.REMOTE_CREDENTIALS
    assert error.__cause__ is None
    assert "very-secret" not in str(error)


# ------------------------------------------------------------- library and processes


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)

    with pytest.raises(InvalidArgument, match=r"pip install .treesnap\[remote\]"):
        BucketBlobs(parse_bucket_url("s3://tests"))


def test_a_child_of_a_user_is_refused_instead_of_waiting_for_ever():
    with answering(page()) as server:
        blobs = opened(server)
        list_all(blobs)

        def use() -> None:
            for connect in (lambda: blobs, lambda: opened(server)):
                with pytest.raises(RuntimeError, match="child of a process"):
                    list_all(connect())

        assert in_child(use).error is None


def test_the_headers_of_a_server_are_read_without_credentials():
    with answering(s3_error("403 Forbidden", "AccessDenied")[:-1] + b">") as server:
        headers = opened(server).server_headers()

    assert headers["content-type"] == "application/xml"
    assert "authorization" not in server.requests[0].headers


def test_a_server_that_does_not_introduce_itself_has_no_headers():
    (port,) = free_ports(1)

    for url in ("s3://tests", f"s3://tests?endpoint=http://127.0.0.1:{port}"):
        assert BucketBlobs(parse_bucket_url(url)).server_headers() == {}


TOKEN_REFUSED = """Error performing token request: Server returned non-2xx status code: 400 Bad
Request: {"error": "invalid_grant", "error_description": "Token expired"}"""


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("", ErrorCode.REMOTE_FAILED),
        ("Generic S3 error: something new", ErrorCode.REMOTE_FAILED),
        (
            "Bulk delete request failed for key a/0: It is gone. (code: 404)",
            ErrorCode.REMOTE_MISSING,
        ),
        (TOKEN_REFUSED, ErrorCode.REMOTE_CREDENTIALS),
    ],
)
def test_an_error_that_was_not_foreseen_has_a_meaning(said, code):
    assert diagnose(said).code == code
