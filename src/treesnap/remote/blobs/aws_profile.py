"""Profiles of AWS, as its own tools have them: credentials, region and endpoint of a name.

``~/.aws/config`` and ``~/.aws/credentials`` say what a profile is, or the files in
``AWS_CONFIG_FILE`` and ``AWS_SHARED_CREDENTIALS_FILE``. Keys that stand there are taken. A
``credential_process`` is run, as the user wrote it there, without a shell. For all else, single
sign-on and roles among it, ``aws configure export-credentials`` of the user's own ``aws`` is asked.
What a store says of a remote is the name of a profile at most.
"""

from __future__ import annotations

import configparser
import datetime as dt
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from treesnap.core.model.errors import InvalidArgument, printable, quoted

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@:/=,-]{0,127}")
_ANSWER_S = 120.0
"""How long a program may take; a person may have to confirm something."""
_KEPT_S = 60.0
"""How long an answer serves all clients of a command, each of which asks for itself."""
_ANSWER_MAX = 1 << 16
_OF_LOGIN = ("sso_session", "sso_start_url")
_NOT_STATIC = ("role_arn", "credential_source", "web_identity_token_file", *_OF_LOGIN)
_TOO_OLD = re.compile("[Ii]nvalid choice")
_LOGIN_NEEDED = re.compile("SSO|sso login|[Tt]oken has expired")


class NoCredentials(Exception):
    """A profile gives no credentials; the text is a sentence without its end."""


class AwsProfile:
    """A profile; what gives its credentials, for obstore. Safe in threads.

    Raises InvalidArgument for a name that is none, or that no file has.
    """

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} is not the name of a profile of AWS")
        self.name = name
        config = _parsed("AWS_CONFIG_FILE", "~/.aws/config")
        credentials = _parsed("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        section = name if name == "default" else f"profile {name}"
        self._fields: dict[str, str] = {**config.get(section, {}), **credentials.get(name, {})}
        if section not in config and name not in credentials:
            raise InvalidArgument(f"There is no profile {name!r} in the settings of AWS")
        self.region: str | None = self._fields.get("region")
        services = config.get(f"services {self._fields.get('services', '')}", {})
        self.endpoint: str | None = _nested(services.get("s3", "")).get(
            "endpoint_url", self._fields.get("endpoint_url")
        )
        self._lock = Lock()
        self._kept: tuple[float, Mapping[str, Any]] | None = None

    def __call__(self) -> Mapping[str, Any]:
        """Returns credentials in the form of obstore's; raises NoCredentials."""
        with self._lock:
            now_s = time.monotonic()
            if self._kept is None or now_s - self._kept[0] > _KEPT_S:
                self._kept = now_s, self._credentials()
            return self._kept[1]

    def _credentials(self) -> Mapping[str, Any]:
        fields = self._fields
        if "aws_access_key_id" in fields and not any(name in fields for name in _NOT_STATIC):
            return _as_taken(
                fields["aws_access_key_id"],
                fields.get("aws_secret_access_key", ""),
                fields.get("aws_session_token"),
            )
        if command := fields.get("credential_process"):
            try:
                return self._printed(shlex.split(command))
            except ValueError as error:
                raise NoCredentials(f"the credential_process is not a command: {error}") from error
        words = ["aws", "configure", "export-credentials"]
        return self._printed([*words, "--profile", self.name, "--format", "process"])

    def _printed(self, words: Sequence[str]) -> Mapping[str, Any]:
        """Returns the credentials that a program prints."""
        what = f"the program {quoted(words[0])} of the profile {quoted(self.name)}"
        try:
            ended = subprocess.run(  # noqa: S603 - the user's own, without a shell
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ANSWER_S,
                check=False,
            )
        except OSError as error:
            raise NoCredentials(f"{what} cannot be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise NoCredentials(f"{what} has not ended for {_ANSWER_S:.0f} s") from error
        if ended.returncode:
            raise NoCredentials(self._refusal(what, ended.stderr.decode("utf-8", "replace")))
        try:
            if len(ended.stdout) > _ANSWER_MAX:
                raise ValueError("it is too long")
            printed = json.loads(ended.stdout)
            if printed["Version"] != 1:
                raise ValueError("it has another version")
            expires = printed.get("Expiration")
            return _as_taken(
                str(printed["AccessKeyId"]),
                str(printed["SecretAccessKey"]),
                printed.get("SessionToken"),
                dt.datetime.fromisoformat(expires) if expires else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoCredentials(f"{what} prints no credentials") from error

    def _refusal(self, what: str, said: str) -> str:
        log_in = f"run: aws sso login --profile {self.name}"
        if _TOO_OLD.search(said):
            return f"{what} is too old: version 2.10 gives credentials to others"
        if _LOGIN_NEEDED.search(said):
            return f"the log-in of the profile {quoted(self.name)} has expired, {log_in}"
        lines = [printable(line.strip()) for line in said.splitlines() if line.strip()]
        reason = f"{what} fails: {lines[-1][:120] if lines else 'it does not say why'}"
        is_of_login = any(name in self._fields for name in _OF_LOGIN)
        return f"{reason}; if the log-in has expired, {log_in}" if is_of_login else reason


def _parsed(variable: str, usual: str) -> Mapping[str, Mapping[str, str]]:
    """Returns the sections of a file, or none without a file; raises InvalidArgument."""
    path = os.path.expanduser(os.environ.get(variable) or usual)
    parser = configparser.ConfigParser(
        delimiters=("=",), interpolation=None, strict=False, default_section=""
    )
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        raise InvalidArgument(f"The file {quoted(path)} cannot be read") from error
    return {
        re.sub(r"\s+", " ", name.strip()): dict(parser.items(name)) for name in parser.sections()
    }


def _nested(value: str) -> Mapping[str, str]:
    """Returns the settings that are indented below another one."""
    pairs = (line.partition("=") for line in value.splitlines())
    return {name.strip(): setting.strip() for name, _, setting in pairs}


def _as_taken(
    key_id: str, secret: str, token: str | None = None, expires_at: dt.datetime | None = None
) -> Mapping[str, Any]:
    """Returns credentials as obstore takes them."""
    taken: dict[str, Any] = {"access_key_id": key_id, "secret_access_key": secret}
    if token:
        taken["token"] = token
    return {**taken, "expires_at": expires_at}
