"""What a timer runs, as units of systemd and as a line for a crontab; pure.

A path or a command that one of both cannot be told exactly is refused, never changed. Each unit
begins with a mark: a comment with the schedule as JSON and a hash of the rest, so that what
another program or a person wrote or changed is recognised, and left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from typing import Any

from treesnap.core.model.errors import InvalidArgument, printable, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.schedule.times import When

MARK = "# treesnap-schedule "
_CRON_COMMAND_MAX = 990
"""Bytes; cron cuts or refuses a command of 1000."""
_URL = re.compile(r"https?://[!-~]+\Z")
_SHELL = "/bin/sh"
_CREATE = ("create", "-q", "--automatic", "-m", "scheduled")
_HOOKED = (
    'export SNAP_ROOT="$1" SNAP_STORE="$2" SNAP_RESULT=skipped SNAP_SNAPSHOT=; b=$3 a=$4; '
    'end() { c=$?; trap "" HUP INT TERM; trap : PIPE; '
    'sh -c "$a" || { echo --after failed >&2; [ $c -gt 0 ] || c=1; }; exit $c; }; '
    'trap end EXIT; trap "exit 143" HUP INT TERM PIPE; '
    'cd "$1" && sh -c "$b" || { c=$?; echo --before failed, no snapshot >&2; exit $c; }; '
    "shift 4; SNAP_RESULT=failed; "
    'SNAP_SNAPSHOT=$("$@" -C "$SNAP_ROOT" --store "$SNAP_STORE" CREATE); c=$?; '
    "case $c in 0) SNAP_RESULT=success;; 4) SNAP_RESULT=incomplete;; esac; exit $c"
)
"""What runs a job with hooks: a program of the shell without newline, backslash and percent sign,
which no crontab can be told, and short, because cron takes no long line. Its arguments are root,
store, the two hooks and the program.

The second hook undoes the first (it thaws what was frozen), so it runs however the rest ended, also
when systemd stops the service, or nothing reads the messages; only SIGKILL prevents it.
"""
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@,+?&#-]+\Z")
"""Words that systemd reads as they stand."""


class Job(NamedTuple):
    """Regular snapshots of one root."""

    root: str
    store: str
    when: When
    program: tuple[str, ...]
    """The words that start the command line; the first is an absolute path."""
    before: str | None = None
    """A command of the shell, run in the root before each snapshot; if it fails, none is taken."""
    after: str | None = None
    """A command of the shell, run in the root after each snapshot, also if that failed.

    In its environment: ``SNAP_RESULT`` (``success``, ``incomplete``, ``failed``, or ``skipped``
    because ``before`` failed), ``SNAP_SNAPSHOT`` (the id, or nothing), ``SNAP_ROOT``,
    ``SNAP_STORE``. If it fails, the job has failed.
    """
    on_failure: str | None = None
    """A command of the shell, for when a snapshot fails or is incomplete, or a hook fails."""
    health_url: str | None = None
    """What is requested after each success, so that a service notices when none comes."""
    fetcher: tuple[str, ...] = ()
    """The words that request a URL."""
    force: bool = False
    """Whether the root may be a dangerous one."""

    @property
    def id(self) -> str:
        """What tells it from the jobs of other roots and stores; a job replaces its like."""
        return hashlib.sha256(f"{self.root}\0{self.store}".encode()).hexdigest()[:12]

    @property
    def commands_of_shell(self) -> dict[str, str]:
        """The commands of the shell that were given, by the names of their fields."""
        given = {"before": self.before, "after": self.after, "on_failure": self.on_failure}
        return {name: command for name, command in given.items() if command is not None}

    @property
    def command(self) -> tuple[str, ...]:
        """The words that a timer runs. The snapshot is automatic, so the policy thins them out."""
        create = (*_CREATE, "--force") if self.force else _CREATE
        if self.before is None and self.after is None:
            return (*self.program, "-C", self.root, "--store", self.store, *create)
        script = _HOOKED.replace("CREATE", " ".join(create))
        hooks = (self.before or ":", self.after or ":")
        return (_SHELL, "-c", script, "treesnap", self.root, self.store, *hooks, *self.program)


def check(job: Job) -> None:
    """Raises InvalidArgument for what no timer can be told."""
    commands = job.commands_of_shell
    for name, command in commands.items():
        if not command.strip():
            raise InvalidArgument(f"The command of {name.replace('_', '-')} is empty")
    for text in (job.root, job.store, *job.program, *commands.values()):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{quoted(text)} is not UTF-8; no timer can be told") from error
        if "\0" in text:
            raise InvalidArgument(f"{quoted(text)} has a NUL byte")
    if job.health_url is not None and not _URL.match(job.health_url):
        raise InvalidArgument(
            f"{quoted(job.health_url)} is not a URL that begins with http:// or https://"
        )


def unit_texts(job: Job) -> dict[str, str]:
    """Returns the units of systemd by their names: what runs first is last."""
    name = unit_name(job.id)
    title = printable(job.root).replace("%", "%%")
    service = ["[Unit]", f"Description=Snapshot of {title} by treesnap"]
    if job.on_failure is not None:
        service.append(f"OnFailure={name}-failed.service")
    service += ["", "[Service]", "Type=oneshot", f"ExecStart={_exec_text(job.command)}"]
    if job.health_url is not None:
        # With the dash a server that does not answer does not make the snapshot a failure.
        service.append(f"ExecStartPost=-{_exec_text((*job.fetcher, job.health_url))}")
    service += ["Nice=10", "IOSchedulingPriority=7"]
    texts = {f"{name}.service": service}
    if job.on_failure is not None:
        texts[f"{name}-failed.service"] = [
            "[Unit]",
            f"Description=Report that the snapshot of {title} by treesnap failed",
            "",
            "[Service]",
            "Type=oneshot",
            f"ExecStart={_exec_text((_SHELL, '-c', job.on_failure))}",
        ]
    texts[f"{name}.timer"] = [
        "[Unit]",
        f"Description=Snapshots of {title} by treesnap",
        "",
        "[Timer]",
        *(f"OnCalendar={calendar}" for calendar in job.when.calendars),
        "Persistent=true",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return {name: _marked(job, "\n".join(lines) + "\n") for name, lines in texts.items()}


def unit_name(job_id: str) -> str:
    """Returns what the names of a job's units begin with."""
    return f"treesnap-{job_id}"


def cron_line(job: Job) -> str:
    """Returns a line for a crontab; raises InvalidArgument for what cron cannot be told.

    Cron mails what a command prints. So only errors are printed.
    """
    words = (*job.command, *job.commands_of_shell.values(), job.health_url or "")
    for word in words:
        if "\\" in word or not word.isprintable():
            raise InvalidArgument(
                f"Cron cannot be told {quoted(word)} exactly: implementations differ about "
                "backslashes and control characters"
            )
    create = f"{shlex.join(job.command)} >/dev/null"
    ping = shlex.join((*job.fetcher, job.health_url or ""))
    report = shlex.join((_SHELL, "-c", job.on_failure or ""))
    if job.health_url is not None and job.on_failure is not None:
        line = f"if {create}; then {ping}; else {report}; fi"
    elif job.health_url is not None:
        line = f"{create} && {ping}"
    elif job.on_failure is not None:
        line = f"{create} || {report}"
    else:
        line = create
    line = line.replace("%", "\\%")  # a bare one would end the command
    if len(line.encode()) > _CRON_COMMAND_MAX:
        raise InvalidArgument(
            f"The line is longer than the {_CRON_COMMAND_MAX} bytes of cron; put long commands "
            "into a script"
        )
    return f"{job.when.cron} {line}"


def _exec_text(words: tuple[str, ...]) -> str:
    """Returns words as systemd reads them back exactly."""
    program, *rest = words
    return " ".join([_word(program), *(_word(word).replace("$", "$$") for word in rest)])


def _word(word: str) -> str:
    if _PLAIN.match(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", escaped) + '"'


def _marked(job: Job, text: str) -> str:
    fields = {
        "id": job.id,
        "root": job.root,
        "store": job.store,
        "when": job.when.text,
        **job.commands_of_shell,
        **({"health_url": job.health_url} if job.health_url is not None else {}),
        "digest": _digest(text),
    }
    return f"{MARK}{json.dumps(fields)}\n{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ScheduleMark(NamedTuple):
    """What the first line of a text says."""

    id: str
    root: str
    store: str
    when: str
    digest: str
    before: str | None = None
    after: str | None = None
    on_failure: str | None = None
    health_url: str | None = None


def read_mark(line: str) -> ScheduleMark | None:
    """Returns what a line says if it is a mark, else None."""
    if not line.startswith(MARK):
        return None
    try:
        fields: Any = json.loads(line[len(MARK) :])
    except ValueError:
        return None
    defaults = ScheduleMark._field_defaults
    if not isinstance(fields, dict):
        return None
    values: dict[str, Any] = {
        name: fields.get(name, defaults.get(name)) for name in ScheduleMark._fields
    }
    optional = {name for name in defaults if values[name] is None}
    is_mark = all(isinstance(values[name], str) for name in values.keys() - optional)
    return ScheduleMark(**values) if is_mark else None


def own_mark(text: str) -> ScheduleMark | None:
    """Returns the mark of a text that is as it was written, else None."""
    line, _, rest = text.partition("\n")
    mark = read_mark(line)
    return mark if mark is not None and mark.digest == _digest(rest) else None
