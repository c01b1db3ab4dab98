"""Runs ``snap`` on a system that has no inotify: the kernel refuses the calls.

As a program, with the arguments of ``snap``. Files are polled twenty times a second, so that a
test has not to wait for five seconds.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

_CALLS = {"x86_64": (253, 294), "aarch64": (26,)}
_SET_NO_NEW_PRIVILEGES, _SET_FILTER, _BY_PROGRAM = 38, 22, 2
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


def is_possible() -> bool:
    """Returns whether the calls of this machine are known."""
    return sys.platform == "linux" and platform.machine() in _CALLS


def refuse_inotify() -> None:
    """Lets the calls that make a queue fail in this process, by seccomp(2)."""
    numbers = _CALLS[platform.machine()]
    program = [(_LOAD, 0, 0, 0)]
    program += [
        (_IS_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)
    ]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_FILTER, _BY_PROGRAM, ctypes.c_char_p(header), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "no filter for system calls can be had")


if __name__ == "__main__":
    refuse_inotify()

    from treesnap.cli.main import main
    from treesnap.core.fs import notifier

    notifier._POLL_S = 0.05
    sys.argv[0] = "snap"
    main()
