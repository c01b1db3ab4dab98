"""The signals that end a program: what the kernel says of each."""

from __future__ import annotations

import os
import signal

from treesnap.core.ending_signals import ENDING

FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP", "SIGABRT"}


def ends_a_program(number: int) -> bool:
    """Whether a process that does not handle a signal is ended by it."""
    child = os.fork()
    if child == 0:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == number


def test_they_are_those_that_end_one_but_for_faults_of_its_own():
    faults = {getattr(signal, name) for name in FAULTS}
    handled = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - faults

    assert set(ENDING) == {number for number in handled if ends_a_program(number)}
