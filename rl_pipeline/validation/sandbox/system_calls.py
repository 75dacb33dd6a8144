"""The system calls that a walled-in program may not make, with their numbers by machine; -1 where there is none.

Whatever reaches another process by its id is here too: signals, limits, priorities, and files that send a signal. So is
what System V shares by number: it counts as no process's memory, stays when its maker ends, and others' can be had.
A program that is no longer who it was would be spared when its starter dies, so who it is cannot be changed either.
"""

import errno
import struct
from collections.abc import Sequence
from typing import NamedTuple


class Call(NamedTuple):
    """One call, as the two machines number it."""

    name: str
    x86_64: int
    aarch64: int


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

DENIED = (
    Call("fork", 57, -1),
    Call("vfork", 58, -1),
    Call("execve", 59, 221),
    Call("execveat", 322, 281),
    Call("kill", 62, 129),
    Call("tkill", 200, 130),
    Call("tgkill", 234, 131),
    Call("rt_sigqueueinfo", 129, 138),
    Call("rt_tgsigqueueinfo", 297, 240),
    Call("pidfd_send_signal", 424, 424),
    Call("pidfd_open", 434, 434),
    Call("pidfd_getfd", 438, 438),
    Call("ptrace", 101, 117),
    Call("process_vm_readv", 310, 270),
    Call("process_vm_writev", 311, 271),
    Call("setpriority", 141, 140),
    Call("ioprio_set", 251, 30),
    Call("sched_setparam", 142, 118),
    Call("sched_setscheduler", 144, 119),
    Call("sched_setaffinity", 203, 122),
    Call("sched_setattr", 314, 274),
    Call("unshare", 272, 97),
    Call("setns", 308, 268),
    Call("mount", 165, 40),
    Call("umount2", 166, 39),
    Call("pivot_root", 155, 41),
    Call("chroot", 161, 51),
    Call("open_tree", 428, 428),
    Call("move_mount", 429, 429),
    Call("fsopen", 430, 430),
    Call("fspick", 433, 433),
    Call("mount_setattr", 442, 442),
    Call("socket", 41, 198),
    Call("io_uring_setup", 425, 425),
    Call("memfd_create", 319, 279),
    Call("bpf", 321, 280),
    Call("perf_event_open", 298, 241),
    Call("userfaultfd", 323, 282),
    Call("add_key", 248, 217),
    Call("keyctl", 250, 219),
    Call("shmget", 29, 194),
    Call("shmat", 30, 196),
    Call("shmctl", 31, 195),
    Call("msgget", 68, 186),
    Call("msgsnd", 69, 189),
    Call("msgrcv", 70, 188),
    Call("msgctl", 71, 187),
    Call("semget", 64, 190),
    Call("semop", 65, 193),
    Call("semtimedop", 220, 192),
    Call("semctl", 66, 191),
    Call("mq_open", 240, 180),
    Call("mq_unlink", 241, 181),
    Call("setuid", 105, 146),
    Call("setgid", 106, 144),
    Call("setreuid", 113, 145),
    Call("setregid", 114, 143),
    Call("setresuid", 117, 147),
    Call("setresgid", 119, 149),
    Call("setfsuid", 122, 151),
    Call("setfsgid", 123, 152),
)
CHANGING_FILES = (
    Call("chmod", 90, -1),
    Call("fchmod", 91, 52),
    Call("fchmodat", 268, 53),
    Call("fchmodat2", 452, 452),
    Call("chown", 92, -1),
    Call("fchown", 93, 55),
    Call("lchown", 94, -1),
    Call("fchownat", 260, 54),
    Call("setxattr", 188, 5),
    Call("lsetxattr", 189, 6),
    Call("fsetxattr", 190, 7),
    Call("removexattr", 197, 14),
    Call("lremovexattr", 198, 15),
    Call("fremovexattr", 199, 16),
    Call("utime", 132, -1),
    Call("utimes", 235, -1),
    Call("futimesat", 261, -1),
    Call("utimensat", 280, 88),
)
"""Changes that Landlock does not see."""

_CLONE, _CLONE3 = Call("clone", 56, 220), 435
_PRLIMIT = Call("prlimit64", 302, 261)
_PRCTL, _PR_SET_PDEATHSIG = Call("prctl", 157, 167), 1
_SENDING_SIGNALS = (
    # F_SETOWN, F_SETSIG and F_SETOWN_EX; FIOSETOWN and SIOCSPGRP
    (Call("fcntl", 72, 25), (8, 10, 15)),
    (Call("ioctl", 16, 29), (0x8901, 0x8902)),
)
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _BITS, _GIVE = 0x20, 0x15, 0x35, 0x45, 0x06
_FIRST_ARGUMENT, _SECOND_ARGUMENT = 16, 24
_DENY = (_GIVE, 0, 0, _ERRNO | errno.EPERM)

Line = tuple[int, int, int, int]


def filter_program(machine: str, denied: Sequence[Call]) -> bytes:
    """The filter in classic BPF: `denied` calls, and those that depend on an argument, fail with EPERM.

    A line is its code, how many lines to skip when it holds and when not, and a number.
    """
    program: list[Line] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_GIVE, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        # Another numbering of the same calls.
        (_AT_LEAST, 0, 1, _X32),
        (_GIVE, 0, 0, _KILL),
        # The flags of clone3 are out of sight: the C library falls back on clone.
        (_EQUAL, 0, 1, _CLONE3),
        (_GIVE, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for call in denied:
        if (number := getattr(call, machine)) >= 0:
            program += [(_EQUAL, 0, 1, number), _DENY]
    # Threads may be made, processes may not; limits may be read and set, but not those of others. That it ends with its
    # starter stays as it is.
    program += _unless(getattr(_CLONE, machine), _FIRST_ARGUMENT, (_BITS, 1, 0, _CLONE_THREAD))
    program += _unless(getattr(_PRLIMIT, machine), _FIRST_ARGUMENT, (_EQUAL, 1, 0, 0))
    program += _unless(getattr(_PRCTL, machine), _FIRST_ARGUMENT, (_EQUAL, 0, 1, _PR_SET_PDEATHSIG))
    for call, commands in _SENDING_SIGNALS:
        for command in commands:
            program += _unless(getattr(call, machine), _SECOND_ARGUMENT, (_EQUAL, 0, 1, command))
    program.append((_GIVE, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _unless(number: int, argument: int, holds: Line) -> list[Line]:
    """Deny the call unless `holds` skips the denial; other calls go on with their number loaded again."""
    return [(_EQUAL, 0, 3, number), (_LOAD, 0, 0, argument), holds, _DENY, (_LOAD, 0, 0, 0)]
