"""Becoming like the process for which a child of a fork server carries out a command.

Its directory, permissions of new files, limits, signals, priority and cores are what the kernel
tells of it. Only on Linux, where alone there are fork servers: callers come here by way of a
:mod:`treesnap.core.fs.peers` that has said who the client is.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from treesnap.core.fs.peers import read_facts

_MEMORY_LIMITS = {resource.RLIMIT_AS, resource.RLIMIT_DATA}
_FILES_MIN = 64
"""Open files of a client that are enough for its command and for what a child has open itself."""
_ALL_LIMITS = sorted({vars(resource)[name] for name in dir(resource) if name.startswith("RLIMIT_")})


class TooLimited(Exception):
    """The client has a limit that only its command alone might keep; a child has more open."""


def take_place(client_fd: int) -> None:
    """Takes directory, umask and signals of a client, by the descriptor of its process."""
    facts = f"/proc/self/fd/{client_fd}"
    os.chdir(f"{facts}/cwd")
    status = _status_in(facts)
    os.umask(int(status["Umask"], 8))
    _take_signals(status, _status_in("/proc/self"))


def take_limits(client: int) -> None:
    """Takes the limits of a client, its priority and its cores.

    Raises TooLimited, and OSError or ValueError where that would raise those of this process.
    """
    if sys.platform != "linux":
        raise TooLimited
    for limit in _ALL_LIMITS:
        limits = resource.prlimit(client, limit)
        if limits != resource.getrlimit(limit):
            if limit in _MEMORY_LIMITS and limits[0] != resource.RLIM_INFINITY:
                raise TooLimited
            resource.setrlimit(limit, limits)
        if limit == resource.RLIMIT_NOFILE and limits[0] < _FILES_MIN:
            raise TooLimited
    policy, wanted_policy = os.sched_getscheduler(0), os.sched_getscheduler(client)
    if policy != wanted_policy:
        os.sched_setscheduler(0, wanted_policy, os.sched_getparam(client))
    priority = os.getpriority(os.PRIO_PROCESS, client)
    if priority != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, priority)
    cores = os.sched_getaffinity(client)
    if cores != os.sched_getaffinity(0):
        os.sched_setaffinity(0, cores)


def _status_in(directory: str) -> dict[str, str]:
    status = read_facts(f"{directory}/status").decode(errors="replace")
    pairs = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _take_signals(client: dict[str, str], own: dict[str, str]) -> None:
    """Ignores and blocks the signals that the client ignores and blocks."""
    for number in _signals_in(client["SigIgn"]) ^ _signals_in(own["SigIgn"]):
        is_ignored = number in _signals_in(client["SigIgn"])
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if is_ignored else usual)
    if client["SigBlk"] != own["SigBlk"]:
        signal.pthread_sigmask(signal.SIG_SETMASK, _signals_in(client["SigBlk"]))


def _signals_in(mask: str) -> set[int]:
    """Returns the signals of a mask that a process may handle.

    The C library keeps two of the others for itself, and ``posix_spawn`` lets children ignore them.
    """
    number = int(mask, 16)
    return {ending for ending in signal.valid_signals() if number >> ending - 1 & 1}
