"""Writes, lists and removes schedules as units of systemd.

Units are replaced whole, the timer last, so a crash leaves the old schedule, or services that no
timer starts. When systemd refuses them, the old ones are put back. Nothing is replaced or removed
that was not written here, or was changed since. No crontab is read or written: for cron, there is
a line that a person pastes.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import (
    ensure_directories,
    opened_file,
    read_file,
    replace_file,
    sync_directory,
    unlink_if_present,
)
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import ErrorCode, NotFound, OperationFailed, Refused, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.schedule.job import (
    Job,
    ScheduleMark,
    check,
    cron_line,
    own_mark,
    read_mark,
    unit_name,
    unit_texts,
)

_FILE_SIZE_MAX = 1 << 20
_TIMEOUT_S = 60
_UNIT_MODE = 0o644


class TimerPlace(NamedTuple):
    """Whose timers these are, and where they lie."""

    fs: FileSystem
    environ: Mapping[str, str]
    """What ``systemctl`` and the program that requests URLs are found by."""
    unit_directory: str
    is_system: bool
    """Whether the units are those of the system, not of the user."""


class ScheduledRoot(NamedTuple):
    """A schedule of one root."""

    id: str
    root: str
    store: str
    when: str
    """As it was given."""
    path: str
    """The file of the timer."""
    before: str | None = None
    """Commands and a URL as in the :class:`Job`; None where none was given."""
    after: str | None = None
    on_failure: str | None = None
    health_url: str | None = None


class WrittenText(NamedTuple):
    """A file that was or would be written."""

    path: str
    text: str


class ScheduleChange(NamedTuple):
    """Outcome of adding a schedule."""

    schedule: ScheduledRoot
    written: tuple[WrittenText, ...]
    commands: tuple[tuple[str, ...], ...]
    """The commands that were run after that, or would be."""
    dry_run: bool


class RemovedSchedule(NamedTuple):
    """Outcome of removing a schedule."""

    schedule: ScheduledRoot
    removed: tuple[str, ...]
    """Files."""
    dry_run: bool


class Scheduler:
    """The schedules of one user, or of the system."""

    def __init__(self, place: TimerPlace) -> None:
        self._place = place

    def fetcher(self) -> tuple[str, ...]:
        """Returns the words that request a URL; raises OperationFailed without curl and wget."""
        curl, wget = self._which("curl"), self._which("wget")
        if curl is not None:
            return (curl, "-fsS", "--max-time", "10", "--retry", "3", "-o", "/dev/null")
        if wget is not None:
            return (wget, "-q", "-T", "10", "-t", "3", "-O", "/dev/null")
        raise OperationFailed("There is neither 'curl' nor 'wget' to request a URL with")

    def add(self, job: Job, *, dry_run: bool = False) -> ScheduleChange:
        """Schedules snapshots of a root; replaces the schedule that the root has there.

        Raises InvalidArgument for what a timer cannot be told, Refused (``not-ours``) where a file
        in the way was not written here, and OperationFailed, after which all is as before:
        with ``no-timers`` where no systemd answers.
        """
        job = self._checked(job)
        if not dry_run:
            self._require_systemd()
        return self._add_units(job, dry_run=dry_run)

    def cron_line(self, job: Job) -> str:
        """Returns the line of a crontab that does what :meth:`add` schedules; changes nothing.

        Raises InvalidArgument for what cron cannot be told, OperationFailed.
        """
        return cron_line(self._checked(job))

    def schedules(self) -> tuple[ScheduledRoot, ...]:
        """Returns all schedules that were written here, by root."""
        return tuple(sorted(self._units(), key=lambda item: (item.root, item.store)))

    def remove(self, given: str, *, dry_run: bool = False) -> tuple[RemovedSchedule, ...]:
        """Removes the schedules of a root, by its path or the beginning of the schedule's id.

        Raises NotFound (``schedule-not-found``), Refused (``not-ours``) for one that was changed
        since, OperationFailed.
        """
        matching = [
            item
            for item in self.schedules()
            if item.root == given or (len(given) >= 4 and item.id.startswith(given))
        ]
        if not matching:
            raise NotFound(
                f"There is no schedule of {quoted(given)}", code=ErrorCode.SCHEDULE_NOT_FOUND
            )
        return tuple(self._remove(item, dry_run=dry_run) for item in matching)

    def _remove(self, item: ScheduledRoot, *, dry_run: bool) -> RemovedSchedule:
        paths = [path for path in self._paths_of(item.id) if self._own(path) is not None]
        if not dry_run:
            timer = f"{unit_name(item.id)}.timer"
            self._require(self._run([*self._systemctl, "disable", "--now", timer]))
            # Else a service that failed is listed as such until the machine is started anew.
            # Systemd refuses this for one that it has not loaded, which does no harm.
            services = [os.path.basename(path) for path in paths if path.endswith(".service")]
            self._run([*self._systemctl, "reset-failed", *services])
            with translating_os_errors("remove a schedule"):
                for path in paths:
                    unlink_if_present(self._place.fs, path)
                sync_directory(self._place.fs, self._place.unit_directory)
            self._require(self._run([*self._systemctl, "daemon-reload"]))
        return RemovedSchedule(item, tuple(paths), dry_run)

    def _checked(self, job: Job) -> Job:
        """Returns a job that timers can be told, with what it needs to request its URL."""
        check(job)
        if job.health_url is not None and not job.fetcher:
            job = job._replace(fetcher=self.fetcher())
        return job

    def _require_systemd(self) -> None:
        """Raises OperationFailed where no systemd answers that could run a timer."""
        if self._which("systemctl") is not None:
            result = self._run([*self._systemctl, "show", "--property=Version"])
            if result.returncode == 0:
                return
        raise OperationFailed(
            f"No systemd answers {quoted(' '.join(self._systemctl))}, so nothing was scheduled",
            code=ErrorCode.NO_TIMERS,
        )

    def _add_units(self, job: Job, *, dry_run: bool) -> ScheduleChange:
        place = self._place
        texts = {self._path(name): text for name, text in unit_texts(job).items()}
        before = {path: self._own(path) for path in self._paths_of(job.id)}
        timer = f"{unit_name(job.id)}.timer"
        commands = (
            (*self._systemctl, "daemon-reload"),
            (*self._systemctl, "enable", timer),
            (*self._systemctl, "restart", timer),
        )
        schedule = _schedule(job, self._path(timer))
        written = tuple(WrittenText(path, text) for path, text in texts.items())
        change = ScheduleChange(schedule, written, commands, dry_run)
        if dry_run:
            return change
        try:
            with translating_os_errors("write a schedule"):
                ensure_directories(place.fs, place.unit_directory)
                self._write({**dict.fromkeys(before), **texts})
            for command in commands:
                self._require(self._run(command))
        except BaseException:
            with suppress(OSError, OperationFailed):
                if before[self._path(timer)] is None:
                    self._run([*self._systemctl, "disable", "--now", timer])
                self._write(before)
                self._run(commands[0])
            raise
        return change

    def _write(self, texts: Mapping[str, str | None]) -> None:
        """Gives files their texts, None for no file; in the order of the names of units."""
        fs, directory = self._place.fs, self._place.unit_directory
        for path, text in texts.items():
            if text is None:
                unlink_if_present(fs, path)
            else:
                replace_file(fs, path, text.encode(), temporary=directory)
                with opened_file(fs, path, os.O_RDONLY | os.O_NONBLOCK) as fd:
                    fs.change_mode(fd, _UNIT_MODE)

    def _paths_of(self, job_id: str) -> list[str]:
        """Returns where the units of a job may be, the timer last."""
        name = unit_name(job_id)
        names = (f"{name}.service", f"{name}-failed.service", f"{name}.timer")
        return [self._path(each) for each in names]

    def _path(self, name: str) -> str:
        return os.path.join(self._place.unit_directory, name)

    def _own(self, path: str) -> str | None:
        """Returns the text of a unit, None if it is absent; raises Refused for one not ours."""
        fs = self._place.fs
        with translating_os_errors("look at a schedule"):
            try:
                is_file = stat.S_ISREG(fs.lstat(path).st_mode)
            except FileNotFoundError:
                return None
            data = read_file(fs, path, _FILE_SIZE_MAX) if is_file else b""
        text = data.decode("utf-8", "replace")
        if own_mark(text) is None:
            raise _not_ours(path)
        return text

    def _units(self) -> Iterator[ScheduledRoot]:
        fs, directory = self._place.fs, self._place.unit_directory
        try:
            names = sorted(fs.list_names(directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if not (name.startswith("treesnap-") and name.endswith(".timer")):
                continue
            path = self._path(name)
            with suppress(OSError):
                if stat.S_ISREG(fs.lstat(path).st_mode):
                    data = read_file(fs, path, _FILE_SIZE_MAX)
                    mark = read_mark(data.decode("utf-8", "replace").partition("\n")[0])
                    if mark is not None and name == f"{unit_name(mark.id)}.timer":
                        yield _marked_schedule(mark, path)

    @property
    def _systemctl(self) -> list[str]:
        return ["systemctl"] if self._place.is_system else ["systemctl", "--user"]

    def _which(self, program: str) -> str | None:
        return shutil.which(program, path=self._place.environ.get("PATH", os.defpath))

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs a program; its messages are in English. Raises OperationFailed without it."""
        program = self._which(words[0])
        if program is None:
            raise OperationFailed(f"There is no program {quoted(words[0])}")
        try:
            return subprocess.run(  # noqa: S603 - systemctl, without a shell
                [program, *words[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                encoding="utf-8",
                errors="surrogateescape",
                timeout=_TIMEOUT_S,
                env={**self._place.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperationFailed(f"{quoted(words[0])} failed: {error}") from error

    def _require(self, result: subprocess.CompletedProcess[str]) -> None:
        """Raises OperationFailed with what a program said if it failed."""
        if result.returncode != 0:
            name = os.path.basename(result.args[0])
            words = " ".join([name, *result.args[1:]])
            said = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
            raise OperationFailed(f"{quoted(words)} failed: {said}")


def _not_ours(path: str) -> Refused:
    return Refused(
        f"What {quoted(path)} holds was not written here, or was changed since",
        code=ErrorCode.NOT_OURS,
        path=path,
    )


def _schedule(job: Job, path: str) -> ScheduledRoot:
    extras = (job.before, job.after, job.on_failure, job.health_url)
    return ScheduledRoot(job.id, job.root, job.store, job.when.text, path, *extras)


def _marked_schedule(mark: ScheduleMark, path: str) -> ScheduledRoot:
    extras = (mark.before, mark.after, mark.on_failure, mark.health_url)
    return ScheduledRoot(mark.id, mark.root, mark.store, mark.when, path, *extras)
