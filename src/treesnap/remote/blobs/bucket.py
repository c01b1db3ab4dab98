"""Blobs in a bucket: S3 and what speaks it, Google Cloud Storage, Azure. By ``obstore``.

The only module that imports obstore, when the first bucket is opened; the extra
``treesnap[remote]`` installs it.

    s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=REGION&profile=PROFILE
    gs://BUCKET/PREFIX?endpoint=...
    az://CONTAINER/PREFIX?account=ACCOUNT&endpoint=...

**Credentials** are never part of the URL. obstore finds them in the environment (``AWS_*``,
``GOOGLE_*``, ``AZURE_*``), in a web identity token file, at the metadata service of a container or
a machine; for Google also in the file that ``gcloud auth application-default login`` writes, and
for Azure in ``az`` with ``AZURE_USE_AZURE_CLI``. It does *not* read ``~/.aws/config`` and
``~/.aws/credentials``: :mod:`treesnap.remote.blobs.aws_profile` does, for the profile in the URL,
or in ``AWS_PROFILE`` where the environment has no keys, as the tools of AWS have it.

**Requests.** Blobs are written with one request each, in one piece, because a multipart upload that
is not finished is paid for until it is removed. ``create`` is sent once, whatever happens;
other requests are repeated after failures that may pass: by obstore a few times, which takes
seconds where connections are refused, and then by :mod:`treesnap.remote.blobs.retries`, for the
minutes that a server needs to restart. Until the first request of an instance has succeeded,
failures that no repetition heals are raised at once: a wrong address and missing credentials among
them. A page of a listing that does not come whole is asked for again, after its last name before.

**Threads and processes.** Calls wait without the interpreter's lock, and Python sees a signal only
when they return. obstore's threads do not survive ``fork``: a child of a process that has used
obstore would wait for ever, so it gets RuntimeError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlsplit

from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.aws_profile import AwsProfile
from treesnap.remote.blobs.base import (
    BLOB_SIZE_MAX,
    BlobInfo,
    BlobMissing,
    Data,
    Facts,
    Range,
    check_listing,
    check_name,
    check_names,
    check_ranges,
    cut_ranges,
    is_name,
    merged_ranges,
    too_large,
)
from treesnap.remote.blobs.retries import Repeater, Retries

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    _Store: TypeAlias = AzureStore | GCSStore | S3Store

_Result = TypeVar("_Result")

Credentials: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns credentials in the form of obstore's: ``access_key_id``, ``secret_access_key``, ``token``
and ``expires_at`` for S3, ``token`` and ``expires_at`` for Google and Azure. Called again when they
expire."""

_PAGE = 1000
"""Names in a page of a listing, and in a request that removes; what S3 allows."""
_REMOVERS = 8
"""Requests at once where blobs are removed one by one."""

_SMALL_BYTES = 1 << 20
"""Up to this size a write has the timeouts of a read. For larger ones, the time without an answer
is the time that the upload takes, and a stalled connection cannot be told from a slow one."""
_WAITING = {"connect_timeout": "5s", "read_timeout": "60s", "timeout": "20m"}
_UPLOADING = {"connect_timeout": "5s", "timeout": "20m"}
_CHECKING = {"connect_timeout": "2s", "timeout": "10s"}
_HEADERS_TIMEOUT_S = 2.0
_REPEATING: Mapping[str, Any] | None = None
"""How a request is repeated that may be: as obstore does, ten times with growing pauses."""
_REPEATING_BRIEFLY: Mapping[str, Any] = {"max_retries": 3}
"""The same where :class:`Repeater` goes on, which tells the user."""
_SENT_ONCE: Mapping[str, Any] = {"max_retries": 0}


# ------------------------------------------------------------------------- addresses


class BucketUrl(NamedTuple):
    """The address of a remote in a bucket."""

    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    account: str | None = None
    profile: str | None = None
    """Of AWS, whose region and endpoint count where the URL has none."""

    def __str__(self) -> str:
        text = f"{self.scheme}://{self.bucket}"
        if self.prefix:
            text += f"/{self.prefix}"
        return text if self.endpoint is None else f"{text} at {self.endpoint}"


_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_ENDPOINT = re.compile(
    r"https?://(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5})?(?:/[\w.~/-]*)?", re.ASCII | re.IGNORECASE
)
_OPTIONS = {
    "s3": {"endpoint", "region", "profile"},
    "gs": {"endpoint"},
    "az": {"endpoint", "account"},
}


def parse_bucket_url(url: str) -> BucketUrl:
    """Returns what a URL says; raises InvalidArgument, without what may be a secret."""
    shown = url.partition("?")[0].rpartition("@")[2]
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # its text holds parts of the URL
        raise InvalidArgument(f"{shown!r} with what follows is not a URL") from None
    if "@" in url:
        raise InvalidArgument(f"The URL of {shown!r} names a user; credentials do not belong there")
    allowed = _OPTIONS.get(parts.scheme)
    if allowed is None:
        raise InvalidArgument(f"{shown!r} does not begin with s3://, gs:// or az://")
    if not _BUCKET_NAME.fullmatch(parts.netloc):
        raise InvalidArgument(f"{parts.netloc!r} in {shown!r} is not the name of a bucket")
    prefix = parts.path.strip("/")
    if parts.fragment or {"", ".", ".."} & set(prefix.split("/") if prefix else ()):
        raise InvalidArgument(f"{shown!r} has a path that no bucket can have")
    for name, value in options:
        if name not in allowed or not value or [key for key, _ in options].count(name) > 1:
            raise InvalidArgument(f"Option {name!r} of {shown!r} is not possible there")
    bucket = BucketUrl(parts.scheme, parts.netloc, prefix)._replace(**dict(options))
    return _with_possible_endpoint(bucket)


def _with_possible_endpoint(bucket: BucketUrl) -> BucketUrl:
    """Raises InvalidArgument for an endpoint that is none."""
    if bucket.endpoint is not None and not _ENDPOINT.fullmatch(bucket.endpoint):
        shown = bucket.endpoint.rpartition("@")[2]
        raise InvalidArgument(f"Endpoint {shown!r} is not of the form http(s)://HOST:PORT")
    return bucket


def _of_profile(url: BucketUrl) -> tuple[BucketUrl, AwsProfile | None]:
    """Returns a URL with what its profile says beside it, and that profile."""
    name = url.profile
    if name is None and url.scheme == "s3" and "AWS_ACCESS_KEY_ID" not in os.environ:
        name = os.environ.get("AWS_PROFILE")
    if not name:
        return url, None
    profile = AwsProfile(name)
    region, endpoint = url.region or profile.region, url.endpoint or profile.endpoint
    return _with_possible_endpoint(url._replace(region=region, endpoint=endpoint)), profile


# --------------------------------------------------------------------------- errors

_CREDENTIALS = frozenset(
    {
        "AuthenticationFailed",
        "AuthenticationRequired",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidAuthenticationInfo",
        "InvalidClientTokenId",
        "InvalidIdentityToken",
        "InvalidSecurity",
        "InvalidToken",
        "MissingSecurityHeader",
        "NoAuthenticationInformation",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
        "invalid_client",
        "invalid_grant",
    }
)
_CODES = {
    ErrorCode.REMOTE_CREDENTIALS: _CREDENTIALS,
    ErrorCode.REMOTE_CLOCK: frozenset({"RequestTimeTooSkewed", "RequestExpired"}),
    ErrorCode.REMOTE_DENIED: frozenset(
        {
            "AccessDenied",
            "AccountProblem",
            "AllAccessDisabled",
            "AuthorizationFailure",
            "AuthorizationPermissionMismatch",
            "BlobImmutableDueToLegalHold",
            "BlobImmutableDueToPolicy",
            "InsufficientAccountPermissions",
            "ObjectLocked",
            "RetentionPolicyNotMet",
            "UserSuspended",
        }
    ),
    ErrorCode.REMOTE_WRONG_REGION: frozenset(
        {
            "IllegalLocationConstraintException",
            "IncorrectEndpoint",
            "PermanentRedirect",
            "TemporaryRedirect",
        }
    ),
    ErrorCode.REMOTE_MISSING: frozenset(
        {"AccountNotFound", "ContainerNotFound", "InvalidBucketName", "NoSuchBucket"}
    ),
    ErrorCode.REMOTE_THROTTLED: frozenset(
        {
            "BandwidthLimitExceeded",
            "RequestLimitExceeded",
            "ServerBusy",
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "TooManyRequests",
        }
    ),
    ErrorCode.REMOTE_FULL: frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"}),
}
_MEANING = {word: code for code, words in _CODES.items() for word in words}
"""What to do about the codes that servers give, of all three families."""
_STATUS_MEANING = {
    401: ErrorCode.REMOTE_CREDENTIALS,
    403: ErrorCode.REMOTE_DENIED,
    404: ErrorCode.REMOTE_MISSING,
    429: ErrorCode.REMOTE_THROTTLED,
    507: ErrorCode.REMOTE_FULL,
}
"""What an HTTP status means when the reply has no error code, as for HEAD."""
_MAY_PASS = frozenset({ErrorCode.REMOTE_THROTTLED, ErrorCode.REMOTE_FAILED})
"""What is worth a repetition even for the first request, beside a connection that broke."""
_ABOUT_ONE_BLOB = frozenset(
    {ErrorCode.REMOTE_DENIED, ErrorCode.REMOTE_FAILED, ErrorCode.REMOTE_MISSING}
)
"""What may be the answer for one of several blobs that are removed."""

_DEBUG = "\n\nDebug source:\n"
_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_SERVER_CODE = re.compile(
    r'<Code>(\w{1,64})</Code>|\(code: (\w{1,64})\)|"error"\s*:\s*"(\w{1,64})"'
)
_SERVER_MESSAGE = re.compile(
    r'<Message>([^<\n]{1,300})|: ([^:\n]{1,300}) \(code: |"error_description"\s*:\s*"([^"]{1,300})"'
)
_REGION = re.compile(r"<Region>([\w-]{1,32})</Region>|expecting '([\w-]{1,32})'")
_METADATA_SERVICE = re.compile(
    r"/latest/(?:api/token|meta-data)|/computeMetadata/|/metadata/identity/|/v2/credentials/"
)
_UNUSABLE_CREDENTIALS = re.compile(
    r"source: (?:Missing(?:AccessKeyId|SecretAccessKey|Account)\b|InvalidAccessKey\b|Credential\b)"
)
_PROVIDER = re.compile(r"External \w+ credential provider: ([^\n]{1,300})")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_UNSENT = re.compile(r"Error\(\s*Connect,|kind: Builder")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_UNKNOWN_NAME = "Name or service not known"
"""Of a host: a typing mistake, or another network. Where no resolver answers, that is said
otherwise."""
_SYSTEM_MESSAGE = re.compile(r'(?:message|error): "([^"\\]{1,200})"')


_PANIC = "PanicException"
"""What obstore raises when an answer breaks its own assumptions: no subclass of Exception, and of a
module that cannot be imported."""


class Diagnosis(NamedTuple):
    """What an error of obstore says."""

    code: ErrorCode
    reason: str
    """A sentence without its end, for messages."""
    status: int | None = None
    """The HTTP status that the server answered with, or None."""
    server_code: str = ""
    """The word for it in the server's answer."""
    is_unclear: bool = False
    """Whether the request may have been carried out, now or later."""
    may_pass: bool = False
    """Whether the same request may succeed later."""


_MADE_NO_SENSE = Diagnosis(
    ErrorCode.REMOTE_FAILED, "the server's answer makes no sense", is_unclear=True
)


def diagnose(text: str) -> Diagnosis:
    """Returns what the text of an error of obstore means.

    Its classes say too little: GenericError is most of them. The text is that of the request and of
    the server's answer, followed by the structure of the error.
    """
    said, _, structure = text.partition(_DEBUG)
    if match := _PROVIDER.search(said):
        is_missing = "cannot be started" in match[1]
        return Diagnosis(
            ErrorCode.REMOTE_PROGRAM_MISSING if is_missing else ErrorCode.REMOTE_CREDENTIALS,
            printable(match[1]),
        )
    if _UNUSABLE_CREDENTIALS.search(structure):
        return Diagnosis(ErrorCode.REMOTE_CREDENTIALS, printable(said.partition(": ")[2]))
    if _METADATA_SERVICE.search(said.partition(" - ")[0]):
        return Diagnosis(
            ErrorCode.REMOTE_CREDENTIALS,
            "no credentials are set, and this machine has no service that gives some",
        )
    status = _STATUS.search(said)
    if status is None and "(code: " not in said:
        return _diagnose_connection(said, structure)
    return _diagnose_answer(int(status[1]) if status else None, said)


def _diagnose_connection(said: str, structure: str) -> Diagnosis:
    """Returns the error for a missing or unintelligible reply."""
    is_unclear = not _UNSENT.search(structure)
    kind = _KIND.search(structure)
    if "redirect without LOCATION" in said:
        reason = "the bucket is in another region"
        return Diagnosis(ErrorCode.REMOTE_WRONG_REGION, reason)
    if "BadScheme" in structure:
        reason = "only an endpoint in the URL of the remote may begin with http://"
        return Diagnosis(ErrorCode.REMOTE_UNREACHABLE, reason)
    if kind is None and "body error" not in said:
        first = said.partition(": ")[2] or said
        return Diagnosis(
            ErrorCode.REMOTE_FAILED, printable(first), is_unclear=is_unclear, may_pass=is_unclear
        )
    may_pass = True
    if certificate := _CERTIFICATE.search(structure):
        reason, may_pass = f"its certificate is not valid: {certificate[1]}", False
    elif "InvalidMessage" in structure:
        reason, may_pass = "it does not speak TLS, which https needs", False
    elif "Parse(" in structure:
        reason, may_pass = "it does not speak HTTP", False
    elif kind is not None and kind[1] == "Timeout":
        reason = "it did not answer in time"
    elif message := _SYSTEM_MESSAGE.search(structure):
        reason = message[1].removeprefix("failed to lookup address information: ")
        may_pass = reason != _UNKNOWN_NAME
    else:
        reason = "it closed the connection before the answer was complete"
    return Diagnosis(ErrorCode.REMOTE_UNREACHABLE, reason, is_unclear=is_unclear, may_pass=may_pass)


def _diagnose_answer(status: int | None, said: str) -> Diagnosis:
    """Returns what an answer of the server means."""
    match = _SERVER_CODE.search(said)
    server_code = next(filter(None, match.groups())) if match else ""
    if status is None and server_code.isdigit():
        status = int(server_code)  # Azure's, for one of several blobs
    match = _SERVER_MESSAGE.search(said)
    message = printable(next(filter(None, match.groups()))).rstrip(". ") if match else ""
    code = _MEANING.get(server_code) or _STATUS_MEANING.get(status or 0, ErrorCode.REMOTE_FAILED)
    if server_code == "AuthorizationHeaderMalformed":
        code = ErrorCode.REMOTE_CREDENTIALS
        if region := _REGION.search(said):
            code = ErrorCode.REMOTE_WRONG_REGION
            message = f"the bucket is in region {next(filter(None, region.groups()))}"
    elif "Request date header too old" in said:
        code = ErrorCode.REMOTE_CLOCK
    elif "failed to authenticate the request" in said:
        code = ErrorCode.REMOTE_CREDENTIALS
    answer = ": ".join(filter(None, [server_code, message])) or f"status {status}"
    is_unclear = status in {408, 429} or ((status or 0) >= 500 and status != 501)
    return Diagnosis(
        code,
        f"the server answers {answer}",
        status,
        server_code,
        is_unclear=is_unclear,
        may_pass=code in _MAY_PASS and (is_unclear or code is ErrorCode.REMOTE_THROTTLED),
    )


# ------------------------------------------------------------------------- requests

_users: set[int] = set()
"""The process that uses obstore, and those whose child it is."""


def _obstore() -> Any:
    """Returns the library; raises InvalidArgument where it is not installed."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        from treesnap.core.features import missing_text

        raise InvalidArgument(missing_text(error, "remote")) from error
    return obstore


def _require_own_threads() -> None:
    """Raises RuntimeError in a child of a process that has used obstore: it would never return."""
    _users.add(os.getpid())
    if len(_users) > 1:
        raise RuntimeError("obstore cannot be used in a child of a process that has used it")


class BucketBlobs:
    """Implements :class:`treesnap.remote.blobs.base.Blobs`.

    ``root_certificate`` is trusted beside those of the system, in PEM. An endpoint that begins with
    ``http://`` is used without encryption of the connection. Without ``retries`` only obstore
    repeats requests.
    """

    def __init__(
        self,
        url: BucketUrl,
        *,
        credentials: Credentials | None = None,
        root_certificate: bytes | None = None,
        retries: Retries | None = None,
    ) -> None:
        url, profile = _of_profile(url)
        self.url: BucketUrl = url
        retries = retries or Retries(for_s=0)
        self._repeater = Repeater(retries)
        self._repeating = _REPEATING_BRIEFLY if retries.for_s else _REPEATING
        self.endpoint: str = url.endpoint or str(url)
        self._credentials = credentials or profile
        self._root_certificate = root_certificate
        self._obstore = _obstore()
        self._errors = (self._obstore.exceptions.BaseError, OSError)
        self._stores: dict[tuple[object, ...], _Store] = {}
        self._lock = Lock()
        self._is_proven = False
        """Whether the server has done something that was asked of it."""
        self._has_bulk_delete = url.scheme != "gs"
        self._store(repeats=False)  # raises what is wrong with the environment

    def sweep_unfinished(self) -> int:
        """Does nothing: a blob is sent in one request, so a server keeps no part of it."""
        return 0

    def give_up(self) -> None:
        """Ends the pauses between requests that are being repeated."""
        self._repeater.give_up()

    def close(self) -> None:
        """Forgets the connections, which obstore closes when nothing refers to them."""
        with self._lock:
            self._stores.clear()

    # ------------------------------------------------------------------- writing

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, whether or not there is one."""
        check_name(name)
        self._request(
            f"write blob {name!r}",
            lambda store: store.put(name, data, use_multipart=False),
            size_bytes=len(data),
        )

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none, with one request; returns whether it did."""
        check_name(name)

        def create(store: _Store) -> bool:
            try:
                store.put(name, data, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
            return True

        store = self._store(repeats=False, timeouts=_timeouts(len(data)))
        return self._sent(f"create blob {name!r}", store, create)

    # ------------------------------------------------------------------- reading

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Returns a blob; raises BlobMissing, and RemoteFailed for a larger one."""
        check_name(name)

        def get(store: _Store) -> bytes | int:
            result = store.get(name)
            size_bytes: int = result.meta["size"]
            return size_bytes if size_bytes > size_bytes_max else result.bytes().to_bytes()

        content = self._request(f"read blob {name!r}", get, missing=name)
        if isinstance(content, int):
            raise too_large(name, content, size_bytes_max, self.endpoint)
        return content

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Returns parts of a blob, near ones with one request; raises BlobMissing."""
        check_name(name)
        check_ranges(ranges)
        requests = merged_ranges(ranges)
        if not requests:
            self.size_bytes(name)
            return [b"" for _ in ranges]
        parts = self._request(
            f"read blob {name!r}",
            lambda store: self._get_parts(store, name, requests),
            missing=name,
        )
        return cut_ranges(ranges, requests, parts)

    def _get_parts(self, store: _Store, name: str, requests: Sequence[Range]) -> list[memoryview]:
        starts = [start for start, _ in requests]
        ends = [sum(request) for request in requests]
        try:
            parts = store.get_ranges(name, starts=starts, ends=ends, coalesce=0)
        except self._obstore.exceptions.GenericError as error:
            if diagnose(str(error)).status != 416:
                raise
            if len(requests) == 1:
                return [memoryview(b"")]
            return [part for item in requests for part in self._get_parts(store, name, [item])]
        return [memoryview(part) for part in parts]

    def size_bytes(self, name: str, /) -> int:
        """Returns the size of a blob; raises BlobMissing."""
        check_name(name)
        return self._request(
            f"look at blob {name!r}", lambda store: store.head(name)["size"], missing=name
        )

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields the blobs whose names begin with ``prefix``, a page with each request."""
        check_listing(prefix, after)
        return self._listed(prefix, after)

    def _listed(self, prefix: str, after: str) -> Iterator[BlobInfo]:
        kind = prefix.partition("/")[0]
        last = max(after, prefix[:-1])
        is_first = True

        def first_page(store: _Store) -> tuple[Iterator[Any], Any]:
            pages = iter(store.list(kind, offset=last, chunk_size=_PAGE))
            return pages, next(pages, None)

        pages, page = self._request(f"list {prefix!r}", first_page)
        while page:
            for item in page:
                name = item["path"]
                if name <= last and not is_first:
                    raise self._failed(
                        f"list {prefix!r}",
                        Diagnosis(ErrorCode.REMOTE_FAILED, "the server does not sort by name"),
                    )
                is_first = False
                last = name
                if name.startswith(prefix) and name > after and is_name(name):
                    yield BlobInfo(name, item["size"], item["e_tag"] or "")
            try:
                page = next(pages, None)
            except self._errors:
                pages, page = self._request(f"list {prefix!r}", first_page)

    def facts(self) -> Facts:
        """Returns the time of the server, and whether the bucket keeps versions.

        The latter a server of S3 or Azure tells with each blob that is written.
        """
        name = f"probe/{os.urandom(8).hex()}"
        result = self._request(
            f"write blob {name!r}", lambda store: store.put(name, b"", use_multipart=False)
        )
        self.delete([name])
        said = self.server_headers().get("date")
        time_s = None
        with suppress(ValueError):
            time_s = parsedate_to_datetime(said).timestamp() if said else None
        is_told = self.url.scheme != "gs"  # whose blobs have generations in any case
        return Facts(time_s, keeps_versions=bool(result.get("version")) if is_told else None)

    def server_headers(self) -> Mapping[str, str]:
        """Returns the headers by which the server introduces itself, in lower case.

        Asks without credentials. Empty where it has no endpoint of its own or does not answer.
        """
        import ssl
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        if self.url.endpoint is None:
            return {}
        context = ssl.create_default_context()
        if self._root_certificate is not None:
            context.load_verify_locations(cadata=self._root_certificate.decode())
        request = Request(self.url.endpoint, method="HEAD")  # noqa: S310 - http(s), see the parser
        try:
            with urlopen(request, timeout=_HEADERS_TIMEOUT_S, context=context) as answer:  # noqa: S310 - as above
                headers = answer.headers
        except HTTPError as error:
            with error:  # it is an answer too, and holds the connection
                headers = error.headers
        except (OSError, ValueError):
            return {}
        return {name.lower(): value for name, value in headers.items()}

    # ------------------------------------------------------------------ removing

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Removes blobs, many with one request; returns those that the server refused to remove."""
        check_names(names)
        refused: list[str] = []
        for start in range(0, len(names), _PAGE):
            refused += self._delete_page(names[start : start + _PAGE])
        return refused

    def _delete_page(self, names: Sequence[str]) -> Sequence[str]:
        error = self._delete_at_once(names) if self._has_bulk_delete else None
        if self._has_bulk_delete and error is None:
            return []
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_REMOVERS, len(names))) as removers:
            kept = list(removers.map(self._is_kept, names))
        if error is not None and error.code == ErrorCode.REMOTE_FAILED and not any(kept):
            self._has_bulk_delete = False  # the server removes one at a time only
        return [name for name, is_kept in zip(names, kept, strict=True) if is_kept]

    def _delete_at_once(self, names: Sequence[str]) -> RemoteFailed | None:
        """Removes blobs with one request; returns the error where it is worth to try each alone.

        One of them may be locked or missing. Which one, not all servers say.
        """

        def delete(store: _Store) -> None:
            store.delete(list(names))

        try:
            self._sent("remove blobs", self._store(repeats=False), delete)
        except RemoteFailed as error:
            if error.code in _ABOUT_ONE_BLOB:
                return error
            if not error.may_pass and not error.is_unclear:
                raise
            again = self._store()
            self._repeater.repeated(lambda: self._sent("remove blobs", again, delete))
        self._is_proven = True
        return None

    def _is_kept(self, name: str) -> bool:
        """Removes one blob; returns whether the server refused."""
        try:
            self._request(
                f"remove blob {name!r}",
                lambda store: store.delete(name),
                missing=name,
                is_single_delete=True,
            )
        except BlobMissing:
            return False
        except RemoteFailed as error:
            if error.code != ErrorCode.REMOTE_DENIED:
                raise
            return True
        return False

    # ------------------------------------------------------------------- sending

    def _request(
        self,
        doing: str,
        call: Callable[[_Store], _Result],
        *,
        missing: str | None = None,
        size_bytes: int = 0,
        is_single_delete: bool = False,
    ) -> _Result:
        """Makes a request that may be repeated; raises BlobMissing if ``missing`` is not there."""
        return self._repeater.repeated(
            lambda: self._requested(
                doing,
                call,
                missing,
                timeouts=_timeouts(size_bytes),
                is_upload=size_bytes > 0,
                is_single_delete=is_single_delete,
            )
        )

    def _requested(
        self,
        doing: str,
        call: Callable[[_Store], _Result],
        missing: str | None,
        *,
        timeouts: Mapping[str, str],
        is_upload: bool,
        is_single_delete: bool,
    ) -> _Result:
        """Makes a request, which obstore repeats as it does."""
        if not self._is_proven:  # what is wrong with address or credentials is said at once
            first = timeouts if is_upload else _CHECKING
            store = self._store(repeats=False, timeouts=first, is_single=is_single_delete)
            try:
                result = self._sent(doing, store, call, missing)
            except BlobMissing:
                self._is_proven = True
                raise
            except RemoteFailed as error:
                if error.code not in _MAY_PASS and not error.is_unclear:
                    raise
            else:
                self._is_proven = True
                return result
        store = self._store(timeouts=timeouts, is_single=is_single_delete)
        return self._sent(doing, store, call, missing)

    def _sent(
        self,
        doing: str,
        store: _Store,
        call: Callable[[_Store], _Result],
        missing: str | None = None,
    ) -> _Result:
        """Makes a request; its errors are our own."""
        _require_own_threads()
        try:
            return call(store)
        except self._errors as error:
            diagnosis = diagnose(str(error))
            if (
                missing is not None
                and isinstance(error, FileNotFoundError)
                and diagnosis.server_code not in _CODES[ErrorCode.REMOTE_MISSING]
            ):
                raise BlobMissing(missing) from None
            # The text of an error of Azure may hold a signature that grants access.
            cause = None if self.url.scheme == "az" else error
            raise self._failed(doing, diagnosis) from cause
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise self._failed(doing, _MADE_NO_SENSE) from error

    def _failed(self, doing: str, diagnosis: Diagnosis) -> RemoteFailed:
        return RemoteFailed(
            f"Could not {doing} in {quoted(str(self.url))}: {diagnosis.reason}",
            code=diagnosis.code,
            endpoint=self.endpoint,
            is_unclear=diagnosis.is_unclear,
            may_pass=diagnosis.may_pass,
        )

    def _store(
        self,
        *,
        repeats: bool = True,
        timeouts: Mapping[str, str] = _WAITING,
        is_single: bool = False,
    ) -> _Store:
        """Returns the client for a sort of requests; each has connections of its own."""
        key = (repeats, *timeouts.items(), is_single)
        with self._lock:
            if key not in self._stores:
                try:
                    self._stores[key] = self._new_store(
                        repeats=repeats, timeouts=timeouts, is_single=is_single
                    )
                except self._errors as error:
                    raise self._failed("connect", diagnose(str(error))) from error
                except ValueError as error:
                    raise InvalidArgument(printable(str(error))) from error
            return self._stores[key]

    def _new_store(self, *, repeats: bool, timeouts: Mapping[str, str], is_single: bool) -> _Store:
        url = self.url
        client: dict[str, Any] = {
            "allow_http": (url.endpoint or "").startswith("http://"),
            **timeouts,
        }
        if self._root_certificate is not None:
            client["root_certificate"] = self._root_certificate
        options: dict[str, Any] = {
            "prefix": url.prefix or None,
            "client_options": client,
            "retry_config": self._repeating if repeats else _SENT_ONCE,
        }
        if self._credentials is not None:
            options["credential_provider"] = self._credentials
        stores = self._obstore.store
        if url.scheme == "gs":
            config = {"base_url": url.endpoint}
            make = stores.GCSStore
        elif url.scheme == "az":
            config = {"endpoint": url.endpoint, "account_name": url.account}
            make = stores.AzureStore
        else:
            config = {"endpoint": url.endpoint, "region": url.region}
            make = stores.S3Store
            if is_single:
                options["disable_bulk_delete"] = True
        config = {name: value for name, value in config.items() if value is not None}
        store: _Store = make(url.bucket, **options, **config)
        return store


def _timeouts(size_bytes: int) -> Mapping[str, str]:
    return _UPLOADING if size_bytes > _SMALL_BYTES else _WAITING
