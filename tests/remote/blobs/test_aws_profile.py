"""Profiles of AWS: what their files say, what a scripted ``aws`` prints, and a server that asks."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from answering import answering, http_answer
from ceph import ACCESS_KEY, SECRET_KEY
from sftp_servers import write_program
from treesnap.core.model.errors import ErrorCode, InvalidArgument, RemoteFailed
from treesnap.remote.blobs import aws_profile
from treesnap.remote.blobs.aws_profile import AwsProfile, NoCredentials
from treesnap.remote.blobs.bucket import BucketBlobs, parse_bucket_url

pytestmark = pytest.mark.usefixtures("bucket_environment")

KEYS = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
WRITTEN = http_answer("200 OK", ETag='"1"')


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home directory with nothing of AWS in it, and no keys in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / ".aws").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


Say = Callable[..., None]


@pytest.fixture
def say(home) -> Say:
    """Writes the files of AWS."""

    def say(config: str = "", credentials: str = "") -> None:
        (home / ".aws" / "config").write_text(config)
        (home / ".aws" / "credentials").write_text(credentials)

    return say


@pytest.fixture
def aws(home, monkeypatch) -> Callable[[str], Path]:
    """Makes the program ``aws`` of a script, and returns where it notes how it was called."""

    def make(script: str) -> Path:
        told = home / "told"
        (home / "bin").mkdir()
        write_program(home / "bin" / "aws", f'echo "$*" >>{shlex.quote(str(told))}\n{script}')
        monkeypatch.setenv("PATH", f"{home}/bin:/usr/bin:/bin")
        return told

    return make


def printing(**fields: object) -> str:
    found = {
        "Version": 1,
        "AccessKeyId": ACCESS_KEY,
        "SecretAccessKey": SECRET_KEY,
        **fields,
    }
    return f"echo {shlex.quote(json.dumps(found))}"


# --------------------------------------------------------------------------- files


def test_keys_in_a_file_are_taken_with_region_and_endpoint(say):
    say(
        "[profile backup]\nregion = eu-west-1\nendpoint_url = https://host.example:9000\n",
        f"[other]\n{KEYS}\n[backup]\n{KEYS}aws_session_token = t\n",
    )

    profile = AwsProfile("backup")

    assert (profile.region, profile.endpoint) == ("eu-west-1", "https://host.example:9000")
    assert profile() == {
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "token": "t",
        "expires_at": None,
    }


def test_the_endpoint_of_a_service_counts_before_that_of_all(say):
    say(
        "[profile a]\nservices = mine\nendpoint_url = https://all.example\n"
        "[services mine]\ns3 =\n  endpoint_url = https://s3.example\n  other = 1\n"
        "[default]\nregion = eu-north-1\n"
    )

    assert AwsProfile("a").endpoint == "https://s3.example"
    assert AwsProfile("default").region == "eu-north-1"


def test_files_may_be_elsewhere(home, monkeypatch):
    (home / "mine").write_text(f"[profile a]\n{KEYS}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "mine"))

    assert AwsProfile("a")()["access_key_id"] == ACCESS_KEY


@pytest.mark.parametrize("name", ["", "-x", "a b", "a;b", "a\nb", "$(id)", "x" * 200])
def test_what_is_no_name_of_a_profile_is_refused(say, name):
    with pytest.raises(InvalidArgument, match="not the name of a profile"):
        AwsProfile(name)


def test_a_profile_that_no_file_has_is_named(say):
    say("[profile a]\n")

    with pytest.raises(InvalidArgument, match="no profile 'b'"):
        AwsProfile("b")


@pytest.mark.parametrize("config", ["no section\n", "[profile a\n", "[profile a]\n\0\n x\n"])
def test_a_file_that_is_not_one_of_aws_is_an_error(say, config):
    say(config)

    with pytest.raises(InvalidArgument):
        AwsProfile("a")


def test_an_endpoint_that_is_none_is_refused(say):
    say("[profile a]\nendpoint_url = nonsense\n")

    with pytest.raises(InvalidArgument, match="nonsense"):
        BucketBlobs(parse_bucket_url("s3://bucket?profile=a"))


# ------------------------------------------------------------------------ programs


def test_aws_is_asked_for_single_sign_on_once_for_a_command(say, aws):
    say("[profile sso]\nsso_session = me\nregion = eu-west-1\n")
    told = aws(printing(SessionToken="t", Expiration="2099-01-02T03:04:05Z"))

    profile = AwsProfile("sso")
    found = [profile(), profile()]

    assert found[0]["expires_at"].year == 2099
    assert found[0]["expires_at"].tzinfo is not None
    assert found[0] == found[1]
    assert told.read_text() == ("configure export-credentials --profile sso --format process\n")


def test_what_was_printed_is_asked_for_again_later(say, aws, monkeypatch):
    say("[profile sso]\nsso_session = me\n")
    told = aws(printing())
    profile = AwsProfile("sso")
    profile()
    now_s = time.monotonic()
    monkeypatch.setattr(aws_profile.time, "monotonic", lambda: now_s + 100)

    profile()

    assert len(told.read_text().splitlines()) == 2


def test_a_credential_process_is_run_as_the_user_wrote_it_without_a_shell(say, home):
    program = write_program(home / "my program", f'test "$1" = "a  b;c" && {printing()}')
    say(f'[profile p]\ncredential_process = "{program}" "a  b;c"\n')

    assert AwsProfile("p")()["secret_access_key"] == SECRET_KEY


@pytest.mark.parametrize(
    ("config", "script", "words"),
    [
        (
            "sso_session = me",
            "echo 'Error loading SSO Token: Token for me does not exist' >&2; exit 255",
            "run: aws sso login --profile p",
        ),
        (
            "source_profile = sso\nrole_arn = arn",
            "echo 'The SSO session associated with this profile has expired' >&2; exit 255",
            "run: aws sso login --profile p",
        ),
        (
            "sso_session = me",
            "echo no network >&2; exit 255",
            "fails: no network; if the log-in has expired, run: aws sso login --profile p",
        ),
        (
            "sso_session = me",
            "echo \"Invalid choice: 'export-credentials', maybe you meant:\" >&2; exit 2",
            "is too old: version 2.10",
        ),
        ("role_arn = arn", "echo one >&2; echo two >&2; exit 1", "fails: two"),
        ("role_arn = arn", "exit 1", "does not say why"),
        ("role_arn = arn", "echo hello", "prints no credentials"),
        ("role_arn = arn", "echo '{\"Version\": 2}'", "prints no credentials"),
        ("role_arn = arn", "echo '[]'", "prints no credentials"),
        ("role_arn = arn", printing(Expiration="soon"), "prints no credentials"),
        ("role_arn = arn", printing(x="y" * 70_000), "prints no credentials"),
        ("role_arn = arn", "sleep 60", "has not ended for"),
        ("credential_process = '", "", "is not a command"),
        ("credential_process = no-such-program", "", "cannot be started"),
    ],
)
def test_what_gives_no_credentials_says_why(say, aws, monkeypatch, config, script, words):
    if "sleep" in script:
        monkeypatch.setattr(aws_profile, "_ANSWER_S", 0.5)
    say(f"[profile p]\n{config}\n")
    aws(script)

    with pytest.raises(NoCredentials) as caught:
        AwsProfile("p")()

    assert words in str(caught.value)


# ------------------------------------------------------------------------ requests


def test_a_bucket_is_used_with_a_profile_of_its_address(say, server_sent):
    requests = server_sent("[profile p]\nregion = eu-west-7\nendpoint_url = {endpoint}\n", "p")

    assert all("Credential=" in item.headers["authorization"] for item in requests)
    assert all("/eu-west-7/s3/" in item.headers["authorization"] for item in requests)


@pytest.fixture
def server_sent(say):
    """Writes a blob to a server that a profile names, and returns the requests."""

    def send(config: str, name: str):
        with answering(WRITTEN) as server:
            say(config.format(endpoint=server.endpoint), f"[{name}]\n{KEYS}")
            BucketBlobs(parse_bucket_url(f"s3://tests/pre?profile={name}")).put("packs/00", b"x")
            return list(server.requests)

    return send


@pytest.mark.parametrize("is_set", [True, False])
def test_the_variable_counts_where_the_environment_has_no_keys(say, monkeypatch, is_set):
    monkeypatch.setenv("AWS_PROFILE", "p")
    if is_set:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    with answering(WRITTEN) as server:
        say(f"[profile p]\nregion = eu-west-7\n{KEYS}")
        BucketBlobs(parse_bucket_url(f"s3://tests?endpoint={server.endpoint}")).put(
            "packs/00", b"x"
        )
        (request,) = server.requests

    key_id = "other" if is_set else ACCESS_KEY
    assert f"Credential={key_id}/" in request.headers["authorization"]


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (
            "echo 'Token has expired and refresh failed' >&2; exit 255",
            ErrorCode.REMOTE_CREDENTIALS,
            "run: aws sso login --profile p",
        ),
        (None, ErrorCode.REMOTE_PROGRAM_MISSING, "'aws' of the profile 'p' cannot be started"),
    ],
)
def test_a_log_in_that_expired_is_said_with_what_to_run(
    say, aws, monkeypatch, tmp_path, script, code, words
):
    say("[profile p]\nsso_session = me\nregion = eu-west-1\n")
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    else:
        aws(script)
    with answering(WRITTEN) as server:
        blobs = BucketBlobs(parse_bucket_url(f"s3://tests?endpoint={server.endpoint}&profile=p"))
        with pytest.raises(RemoteFailed) as caught:
            blobs.put("packs/00", b"x")

    error = caught.value
    assert (error.code, error.may_pass, error.is_unclear) == (code, False, False)
    assert words in error.message
    assert server.requests == []


def test_a_real_server_takes_what_a_profile_gives(ceph, say, aws):
    say(f"[profile sso]\nsso_session = me\nregion = us-east-1\nendpoint_url = {ceph.endpoint}\n")
    told = aws(printing(Expiration="2099-01-02T03:04:05+00:00"))
    blobs = BucketBlobs(parse_bucket_url("s3://tests/profiles?profile=sso"))

    blobs.put("packs/00", b"content")
    assert blobs.create("packs/01", bytes(2 << 20))

    assert blobs.get("packs/00") == b"content"
    assert [item.name for item in blobs.list("packs/")] == ["packs/00", "packs/01"]
    assert len(told.read_text().splitlines()) == 1
    assert blobs.delete(["packs/00", "packs/01"]) == []
    blobs.close()
