"""What programs try, and that it ends with them; with both kinds of walls around the file system."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import psutil
import pytest

from rl_pipeline.validation import suites
from rl_pipeline.validation.sandbox import plain_values, running
from rl_pipeline.validation.sandbox.running import Ending, Limits, SandboxUnavailable, UnusableTest, run_program

SUITES = Path(suites.__file__).parent / "general"
FORK_BOMB = "import os\nwhile True:\n    os.fork()"
THREADS = "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"
MEMORY = "held = []\nwhile True:\n    held.append(bytearray(64 << 20))"
ONE_FILE = "with open('big', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))"
MANY_FILES = "for n in range(10**6):\n    with open(f'f{n}', 'wb') as file:\n        file.write(bytes(1 << 20))"
EMPTY_FILES = "for n in range(10**6):\n    open(f'f{n}', 'w').close()"
SIGNAL_BY_FILE = """
import fcntl, os
reading, writing = os.pipe()
fcntl.fcntl(reading, fcntl.F_SETSIG if hasattr(fcntl, 'F_SETSIG') else 10, 9)
fcntl.fcntl(reading, fcntl.F_SETOWN, os.getppid())
"""
SHARED_MEMORY = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(0, 1 << 20, 0o1600) < 0:
    raise OSError(ctypes.get_errno(), 'shmget')
"""
QUEUE = SHARED_MEMORY.replace("shmget(0, 1 << 20, 0o1600)", "msgget(0, 0o1600)")
SEMAPHORES = SHARED_MEMORY.replace("shmget(0, 1 << 20, 0o1600)", "semget(0, 1, 0o1600)")
NAMED_QUEUE = SHARED_MEMORY.replace("shmget(0, 1 << 20, 0o1600)", "mq_open(b'/left', 0o102, 0o600, None)")
LOOKING_AT_MEMORY = SHARED_MEMORY.replace("shmget(0, 1 << 20, 0o1600)", "shmctl(0, 0, None)")
OUTLIVING = SHARED_MEMORY.replace("shmget(0, 1 << 20, 0o1600)", "prctl(1, 0, 0, 0, 0)")
WITHOUT_ITS_FIRST_THREAD = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
"""
LIVING_ON = {
    "sleeps": "import time; time.sleep(600)",
    "clears the signal": "import ctypes, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); time.sleep(600)",
    "becomes somebody else": "import os, time\ntry:\n    os.setresuid(65534, 65534, 65534)\nexcept OSError:\n    pass\n"
    "time.sleep(600)",
    "goes without its first thread": WITHOUT_ITS_FIRST_THREAD,
}
ENOUGH_TO_TRY = 1.0
"""Seconds in which a walled program has done what it does, as a rule."""
WRONG = "assert f(1) == 2 and f(2) == math.pi"
TRICKS = {
    "exec that does nothing": "import builtins\nbuiltins.exec = lambda *a, **k: None\ndef f(x): return 0",
    "compile that gives nothing": "import builtins\nbuiltins.compile = lambda *a, **k: 'pass'\ndef f(x): return 0",
    "equal to everything": "class E:\n    __eq__ = lambda s, o: True\ndef f(x): return E()",
    "a number equal to everything": "class E(int):\n    __eq__ = lambda s, o: True\ndef f(x): return E(0)",
    "assertion errors that are none": "import builtins\nbuiltins.AssertionError = StopIteration\ndef f(x): return 0",
    "leaves in the middle of a call": "import os\ndef f(x): os._exit(0)",
    "leaves by an exit": "import sys\ndef f(x): sys.exit(0)",
    "raises what ends a process": "def f(x): raise SystemExit(0)",
    "does it at the end": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0",
    "words in the pipes": """
import os
def f(x):
    for number in range(3, 64):
        try:
            os.write(number, b'passed \\n["tuple", ["returned", 2]]\\npassed \\n')
        except OSError:
            pass
    return 0
""",
    "words in the pipes of all processes": """
import glob, os
def f(x):
    for path in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'passed \\n')
        except OSError:
            pass
    return 0
""",
    "frames and what they hold": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
            if isinstance(value, str) and len(value) >= 16:
                print(value)
            if isinstance(value, dict):
                value.update({key: lambda *a, **k: True for key in ('test', 'check', 'verdict')})
        frame = frame.f_back
    return 0
""",
    "everything that the collector knows": """
import gc
for thing in gc.get_objects():
    if isinstance(thing, dict) and 'test' in thing:
        thing['test'] = ''
def f(x): return 0
""",
    "a thread that answers first": r"""
import os, threading
def forge():
    for number in range(3, 64):
        try:
            os.write(number, b'["tuple", ["returned", null]]\\n' * 5)
        except OSError:
            pass
threading.Thread(target=forge, daemon=True).start()
def f(x): return 0
""",
    "the modules that judge": """
import sys
for module in list(sys.modules.values()):
    for name in ('to_line', 'from_line', '_told', '_read', 'put_up'):
        if hasattr(module, name):
            setattr(module, name, lambda *a, **k: b'passed')
def f(x): return 0
""",
}
CLAIM = """
import os
for number in range(3, 20):
    try:
        os.write(number, b'passed\\npassed word\\n')
    except OSError:
        pass
os._exit(0)
"""
PRIORITY = "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)"
OTHERS_LIMITS = "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))"
NAMESPACES = (
    "import ctypes, os\nif ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0:\n    raise PermissionError"
)


@cache
def has_walls(*, namespaces: bool) -> bool:
    """Whether this machine has them: with namespaces of its own a program can write, else it cannot."""
    try:
        return run_program("open('a', 'w')" if namespaces else "", "", Limits(namespaces=namespaces)).passed
    except SandboxUnavailable:
        return False


@pytest.fixture(params=[True, False], ids=["namespaces", "landlock"])
def limits(request: pytest.FixtureRequest) -> Limits:
    if not has_walls(namespaces=request.param):
        pytest.skip(f"needs a kernel with {'user namespaces' if request.param else 'Landlock'}")
    return Limits(
        wall_seconds=20.0, cpu_seconds=10, memory_bytes=512 << 20, file_bytes=8 << 20, namespaces=request.param
    )


def test_a_right_program_passes_and_a_wrong_one_does_not(limits: Limits) -> None:
    test = "assert add(2, 3) == 5"
    for program, ending in (
        ("def add(a, b): return a + b", Ending(passed=True, reason="passed")),
        ("def add(a, b): return a - b", Ending(passed=False, reason="AssertionError")),
        ("def add(a, b): raise KeyError", Ending(passed=False, reason="KeyError")),
        ("def add(a, b) return", Ending(passed=False, reason="SyntaxError")),
        ("def sub(a, b): return a - b", Ending(passed=False, reason="KeyError")),
    ):
        assert run_program(program, test, limits, entry_point="add") == ending


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
def test_a_wrong_program_passes_by_no_trick(trick: str, limits: Limits) -> None:
    assert not run_program(trick, WRONG, limits, entry_point="f", prelude="import math").passed


def test_a_program_that_dies_is_not_taken_for_one_that_raises(limits: Limits) -> None:
    expects = "try:\n    f(1)\nexcept Exception:\n    pass\nelse:\n    raise AssertionError"
    assert run_program("def f(x): raise ValueError", expects, limits, entry_point="f").passed
    assert run_program("def f(x): open('/').g", expects, limits, entry_point="f").passed
    died = run_program("import os\ndef f(x): os._exit(0)", expects, limits, entry_point="f")
    assert died == Ending(passed=False, reason="died")


def test_plain_values_come_and_go_as_they_are(limits: Limits) -> None:
    values = "[None, True, 7, -1.5, float('inf'), 2j, 'é\\n', b'x', (1, [2]), {3}, frozenset({4}), {(5, 'a'): {}}]"
    test = f"for value in {values}:\n    got = f(value, named=[value])\n    assert got == (value, [value])"
    program = "def f(value, named): return value, named"
    assert run_program(program, test, limits, entry_point="f").passed
    counted = "from collections import Counter\ndef f(text): return Counter(text)"
    assert run_program(counted, "assert f('aab') == {'a': 2, 'b': 1}", limits, entry_point="f").passed


def test_a_test_that_cannot_be_asked_is_the_suites_fault(limits: Limits) -> None:
    with pytest.raises(UnusableTest, match=r"a function is no plain value\): correct the suite"):
        run_program("def f(x): return x", "f(lambda: 1)", limits, entry_point="f")


def test_what_programs_need_is_there(limits: Limits) -> None:
    program = """
import asyncio, json, math, threading
import numpy as np
async def wait(): return 1
done = []
thread = threading.Thread(target=lambda: done.append(1)); thread.start(); thread.join()
"""
    ended = run_program(
        f"{program}\ndef f(): return done == [asyncio.run(wait())] and float(np.ones(3).sum())",
        *("assert f() == 3", limits),
        entry_point="f",
    )
    assert ended.passed


def test_a_program_sees_no_environment_and_an_empty_directory(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "value")
    look = "import os\nassert 'SECRET' not in os.environ and os.listdir() == []"
    assert run_program(look, look, limits).passed


@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "/proc/1/cmdline", __file__])
def test_a_program_can_read_nothing_but_python_and_its_libraries(path: str, limits: Limits) -> None:
    assert Path(path).exists()
    read = run_program(f"open({path!r}).read()", "", limits)
    assert read.reason == ("FileNotFoundError" if limits.namespaces else "PermissionError")


@pytest.mark.parametrize("path", [SUITES / "code_generation.jsonl", Path(running.__file__)])
def test_neither_program_nor_test_can_read_what_the_suites_hold(path: Path, limits: Limits) -> None:
    assert path.exists()
    look = f"open({str(path)!r}).read()"
    unread = "FileNotFoundError" if limits.namespaces else "PermissionError"
    assert run_program(look, "", limits).reason == unread
    assert run_program("", look, limits).reason == unread


def test_a_test_can_use_the_worlds_and_a_program_cannot(limits: Limits) -> None:
    world = "from rl_pipeline.environments.crafting import CraftingWorld"
    assert run_program("", "CraftingWorld().tasks(1, seed=0)", limits, prelude=world).passed
    assert not run_program(world, "", limits).passed


def test_where_the_package_is_installed_among_others_only_the_others_can_be_read(
    limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / "site-packages"
    for name in ("rl_pipeline", "another"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text("answer = 42")
    monkeypatch.setattr(running, "_PACKAGE", packages / "rl_pipeline")
    monkeypatch.setattr(running, "_LIBRARIES", (*running._LIBRARIES, str(tmp_path / "lib")))
    running._readable.cache_clear()
    try:
        assert run_program(f"open({str(packages / 'another' / '__init__.py')!r}).read()", "", limits).passed
        assert not run_program(f"open({str(packages / 'rl_pipeline' / '__init__.py')!r}).read()", "", limits).passed
    finally:
        running._readable.cache_clear()


@pytest.mark.parametrize("leaving", ["import os; os._exit(0)", "import sys; sys.exit(0)", "raise SystemExit(0)"])
def test_to_leave_before_the_test_is_no_pass(leaving: str, limits: Limits) -> None:
    assert not run_program(leaving, "assert False", limits).passed


def test_to_claim_a_pass_is_none(limits: Limits) -> None:
    assert not run_program(CLAIM, "assert False", limits).passed


@pytest.mark.parametrize(
    "endless", ["while True: pass", "import time; time.sleep(600)", "while True: print('x' * 9999)"]
)
def test_an_endless_program_is_ended(endless: str) -> None:
    assert run_program(endless, "", Limits(wall_seconds=1.0)) == Ending(passed=False, reason="timeout")


def test_processor_time_is_bounded_too() -> None:
    ended = run_program("while True: pass", "", Limits(wall_seconds=60.0, cpu_seconds=1))
    assert ended == Ending(passed=False, reason="died")


@pytest.mark.parametrize(
    ("program", "error"),
    [
        pytest.param(FORK_BOMB, "PermissionError", id="fork bomb"),
        pytest.param("import subprocess; subprocess.run(['/bin/true'])", "PermissionError", id="another program"),
        pytest.param("import os; os.execv('/bin/true', ['true'])", "PermissionError", id="another program instead"),
        pytest.param(THREADS, "RuntimeError", id="threads"),
        pytest.param(MEMORY, "MemoryError", id="memory hog"),
        pytest.param("import os; os.kill(os.getppid(), 9)", "PermissionError", id="kill the parent"),
        pytest.param("import os; os.killpg(0, 9)", "PermissionError", id="kill the group"),
        pytest.param(SIGNAL_BY_FILE, "PermissionError", id="a file that sends a signal"),
        pytest.param(PRIORITY, "PermissionError", id="the parent's priority"),
        pytest.param(OTHERS_LIMITS, "PermissionError", id="the parent's limits"),
        pytest.param(NAMESPACES, "PermissionError", id="namespaces within"),
        pytest.param(SHARED_MEMORY, "PermissionError", id="memory that is not its own"),
        pytest.param(LOOKING_AT_MEMORY, "PermissionError", id="memory of others"),
        pytest.param(QUEUE, "PermissionError", id="a queue that stays"),
        pytest.param(SEMAPHORES, "PermissionError", id="semaphores that stay"),
        pytest.param(NAMED_QUEUE, "PermissionError", id="a named queue that stays"),
        pytest.param(OUTLIVING, "PermissionError", id="to live on without its starter"),
        pytest.param("def f(): return f()\nf()", "RecursionError", id="recursion"),
    ],
)
def test_what_it_tries_fails(program: str, error: str, limits: Limits) -> None:
    assert run_program(program, "", limits) == Ending(passed=False, reason=error)


@pytest.mark.parametrize("program", [ONE_FILE, MANY_FILES, EMPTY_FILES], ids=["one file", "many files", "empty files"])
def test_the_disk_is_not_filled(program: str, limits: Limits) -> None:
    assert run_program(program, "", limits).reason == ("OSError" if limits.namespaces else "PermissionError")


def test_small_files_can_be_written_where_they_are_bounded(limits: Limits) -> None:
    written = run_program("open('a', 'w').write('x')\nassert open('a').read() == 'x'", "", limits)
    assert written.passed == limits.namespaces


def test_files_outside_stay_as_they_are(limits: Limits, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    precious.chmod(0o644)
    for harm in ("unlink({!r})", "truncate({!r}, 0)", "chmod({!r}, 0)", "utime({!r}, (1, 1))", "rename({!r}, 'mine')"):
        assert not run_program(f"import os; os.{harm.format(str(precious))}", "", limits).passed
    assert not run_program(f"open({str(precious)!r}, 'w')", "", limits).passed
    assert not run_program(f"open({str(tmp_path / 'new')!r}, 'w')", "", limits).passed
    assert precious.read_text() == "kept"
    assert precious.stat().st_mode & 0o777 == 0o644
    assert precious.stat().st_mtime > 1
    assert [file.name for file in tmp_path.iterdir()] == ["precious"]


def test_there_is_no_network(limits: Limits) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert run_program(program, "", limits) == Ending(passed=False, reason="PermissionError")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    for program in ("open('a', 'w').write('x')", "import os; os.setsid()", "import time; time.sleep(600)"):
        run_program(program, "", Limits(wall_seconds=1.0))
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", LIVING_ON.values(), ids=LIVING_ON.keys())
def test_a_program_does_not_outlive_whoever_started_it(program: str, limits: Limits) -> None:
    starter = (
        "from rl_pipeline.validation.sandbox.running import Limits, run_program\n"
        f"run_program({program!r}, '', Limits(wall_seconds=600, namespaces={limits.namespaces}))"
    )
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=Path(running.__file__).parents[3])
    try:
        while not (walled := [child for child in psutil.Process(process.pid).children() if is_walled(child.pid)]):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(ENOUGH_TO_TRY)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(walled, timeout=20)
    for child in alive:
        child.kill()
    assert not alive


def is_walled(process: int) -> bool:
    return "Seccomp:\t2" in Path(f"/proc/{process}/status").read_text()


def test_a_child_that_cannot_start_is_no_verdict_on_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PATHS", ("/nowhere",))
    with pytest.raises(SandboxUnavailable, match="did not start"):
        run_program("", "")


def test_without_walls_no_program_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, ran = tmp_path / "rl_pipeline" / "validation" / "sandbox", tmp_path / "ran"
    package.mkdir(parents=True)
    refusing = "def silence(): pass\ndef put_up(**_): raise OSError(1, 'Operation not permitted')"
    (package / "walls.py").write_text(refusing)
    shutil.copy(plain_values.__file__, package)
    monkeypatch.setattr(running, "_PATHS", (str(tmp_path),))
    with pytest.raises(SandboxUnavailable, match=r"cannot be walled in here \(Operation not permitted\)"):
        run_program(f"open({str(ran)!r}, 'w')", "")
    assert not ran.exists()
