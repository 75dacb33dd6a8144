"""The walls around a program, put up from within its own process by Linux itself; there is no way back.

- Limits on processor time, memory, the size and number of files, and threads.
- Namespaces of its own, where the machine allows them: no network, and a root in which there is nothing but what may be
  read, which cannot be changed, and one directory in memory with a bound. Elsewhere Landlock: the same can be read, and
  nothing can be written at all.
- A filter of system calls: no further process, no other program, nothing that reaches another process or outlives
  the one that started it, no socket but pairs within itself.

A machine that cannot put them up raises `OSError`, and the program is not run. It needs no privileges, and being root
opens nothing.
"""

import ctypes
import errno
import os
import resource
import signal
import struct
from collections.abc import Sequence

from rl_pipeline.validation.sandbox.system_calls import ARCHITECTURES, CHANGING_FILES, DENIED, Call, filter_program

MOST_FILES = 1000
_MOST_OPEN, _MOST_THREADS = 64, 64

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_RECURSIVE, _MS_PRIVATE = 2, 4, 1 << 12, 1 << 14, 1 << 18
_MOUNT_ATTR_RDONLY, _AT_FDCWD, _AT_RECURSIVE = 1, -100, 0x8000
_MOUNT_SETATTR, _LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 442, 444, 445, 446
_LANDLOCK_VERSION_FLAG, _LANDLOCK_WITH_TRUNCATE = 1, 3
_LANDLOCK_RIGHTS = 0b0111_1111_1111_1111
"""All of the third version."""
_LANDLOCK_READ_FILE, _LANDLOCK_READ_DIRECTORY, _LANDLOCK_PATH_BENEATH = 0b0100, 0b1000, 1
_SCRATCH = "/scratch"

_libc = ctypes.CDLL(None, use_errno=True)


def put_up(
    directory: str, *, readable: Sequence[str], cpu_seconds: int, memory_bytes: int, file_bytes: int, namespaces: bool
) -> None:
    """All walls around the calling process, which is put into an empty directory: `directory`, or one in its place.

    Of all other files it can read those that are, or are beneath, `readable`.
    """
    if os.uname().machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {os.uname().machine}")
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    denied: tuple[Call, ...] = DENIED
    if not (namespaces and _own_namespaces(directory, readable, file_bytes)):
        _allow_no_more_than_to_read([*readable, directory])
        denied += CHANGING_FILES
        os.chdir(directory)
    _limit(resource.RLIMIT_CPU, cpu_seconds)
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_NOFILE, _MOST_OPEN)
    _limit(resource.RLIMIT_CORE, 0)
    program = filter_program(os.uname().machine, denied)
    buffer = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filters, 0, 0))


def _own_namespaces(directory: str, readable: Sequence[str], file_bytes: int) -> bool:
    """Whether the process now has a network and mounts of its own; False where the machine does not allow it."""
    user, group = f"{os.getuid()} {os.getuid()} 1", f"{os.getgid()} {os.getgid()} 1"
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET | _CLONE_NEWIPC) < 0:
        return False
    for name, content in (("setgroups", "deny"), ("uid_map", user), ("gid_map", group)):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - this process should start fast
            file.write(content)
    _make_unchangeable("/", _AT_RECURSIVE)
    _mount_memory(directory, "mode=755")
    for path in readable:
        _show(path, directory + path)
    os.mkdir(directory + _SCRATCH)  # noqa: PTH102 - this process should start fast
    _make_unchangeable(directory, 0)
    _mount_memory(directory + _SCRATCH, f"size={file_bytes},nr_inodes={MOST_FILES},mode=700")
    os.chroot(directory)
    os.chdir(_SCRATCH)
    # Outside of a namespace all processes of the user would count.
    _limit(resource.RLIMIT_NPROC, _MOST_THREADS)
    return True


def _make_unchangeable(path: str, flags: int) -> None:
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, _MS_PRIVATE, 0)
    _check(_libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes)))


def _mount_memory(path: str, options: str) -> None:
    _check(_libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode()))


def _show(path: str, place: str) -> None:
    """Have what is at `path` at `place` too, as unchangeable as it is."""
    if os.path.isdir(path):  # noqa: PTH112 - this process should start fast
        os.makedirs(place)  # noqa: PTH103
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))
    _check(_libc.mount(os.fsencode(path), os.fsencode(place), None, _MS_BIND | _MS_RECURSIVE, None))


def _allow_no_more_than_to_read(readable: Sequence[str]) -> None:
    """From now on no file can be made, changed or run, and no others can be read."""
    version = _check(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION_FLAG))
    if version < _LANDLOCK_WITH_TRUNCATE:
        raise OSError(errno.ENOSYS, "the kernel has neither namespaces for users nor the third version of Landlock")
    ruleset = struct.pack("=Q", _LANDLOCK_RIGHTS)
    rules = _check(_libc.syscall(_LANDLOCK_CREATE_RULESET, ruleset, len(ruleset), 0))
    for path in readable:
        rights = _LANDLOCK_READ_FILE | (_LANDLOCK_READ_DIRECTORY if os.path.isdir(path) else 0)  # noqa: PTH112
        shown = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", rights, shown)
        _check(_libc.syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_PATH_BENEATH, rule, 0))
        os.close(shown)
    _check(_libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0))
    os.close(rules)


def silence() -> None:
    """Nobody reads what a program prints: to print for ever gains nothing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _limit(what: int, most: int) -> None:
    """Or less, where the process may not have so much to begin with."""
    _, hard = resource.getrlimit(what)
    bounded = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (bounded, bounded))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
