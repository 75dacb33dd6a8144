"""What the disk adapter does beyond the conformance suite: crashes, many processes, directories that refuse."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import InvalidKey, ObjectsUnavailable

MEGABYTE = 1 << 20


@contextmanager
def _python(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, killed at the end if it is still there."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


def _bytes_being_written(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / ".rl-objects" / "writing").glob("*"))


UPLOAD = """
import sys
from pathlib import Path
from rl_pipeline.stores.disk import DiskObjects
DiskObjects(Path(sys.argv[1])).upload("a", Path(sys.argv[2]))
"""

PLAIN_COPY = """
import sys
with open(sys.argv[2], "rb") as source, open(sys.argv[1] + "/a", "wb") as file:
    while chunk := source.read(1 << 20):
        file.write(chunk)
"""


def _kill_in_the_middle_of_writing(program: str, root: Path, pipe: Path, written: Callable[[], int]) -> None:
    """Let `program` write what comes out of a pipe, and kill it when half of that is on its way to the disk."""
    os.mkfifo(pipe)
    with _python(program, root, pipe) as process, pipe.open("wb", buffering=0) as source:
        source.write(b"n" * 3 * MEGABYTE)
        _wait_until(lambda: written() >= MEGABYTE)
        process.kill()
        assert process.wait() == -9


def test_a_writer_killed_half_way_leaves_the_old_object_and_nothing_to_see(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path / "root")
    objects.put("a", b"o" * MEGABYTE)
    _kill_in_the_middle_of_writing(UPLOAD, objects.root, tmp_path / "pipe", lambda: _bytes_being_written(objects.root))
    assert objects.get("a") == b"o" * MEGABYTE
    assert [stored.key for stored in objects.list()] == ["a"]
    assert _bytes_being_written(objects.root) > 0
    DiskObjects(objects.root)
    assert _bytes_being_written(objects.root) == 0


def test_the_same_kill_tears_a_file_that_is_written_in_place(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"o" * MEGABYTE)
    _kill_in_the_middle_of_writing(PLAIN_COPY, tmp_path, tmp_path / "pipe", lambda: target.read_bytes().count(b"n"))
    assert set(target.read_bytes()) == set(b"n")
    assert target.stat().st_size < 6 * MEGABYTE


def test_opening_the_store_leaves_a_running_write_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    root = tmp_path / "root"
    with _python(UPLOAD, root, pipe) as process:
        with pipe.open("wb", buffering=0) as source:
            source.write(b"n" * 3 * MEGABYTE)
            _wait_until(lambda: _bytes_being_written(root) >= MEGABYTE)
            objects = DiskObjects(root)
            assert not objects.exists("a")
        assert process.wait() == 0
    assert objects.get("a") == b"n" * 3 * MEGABYTE


# Kills itself at the n-th thing it asks of the file system, for every n until the work is done without being killed.
CRASH_AT_EVERY_STEP = """
import json, os, shutil, signal, sys
from pathlib import Path
from rl_pipeline.stores.disk import DiskObjects
FILE_EVENTS = ("open", "os.", "fcntl.")
template, root = Path(sys.argv[1]), Path(sys.argv[2])
step = 0
while True:
    step += 1
    shutil.copytree(template, root)
    child = os.fork()
    if child == 0:
        left = step
        def hook(event, _):
            global left
            if event.startswith(FILE_EVENTS):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        getattr(DiskObjects(root), sys.argv[3])("a/b", *(arg.encode() for arg in sys.argv[4:]))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    objects = DiskObjects(root)
    print(json.dumps({
        "killed": os.WIFSIGNALED(status),
        "found": {stored.key: objects.get(stored.key).decode() for stored in objects.list()},
        "writing": os.listdir(root / ".rl-objects" / "writing"),
    }))
    objects.put("a/b", b"the next write")
    assert objects.get("a/b") == b"the next write" and objects.stat("a/b").sha256
    shutil.rmtree(root)
    if not os.WIFSIGNALED(status):
        sys.exit(os.WEXITSTATUS(status))
"""


@pytest.mark.parametrize(
    ("before", "call", "old", "new"),
    [
        ("old", ["put", "new"], {"a/b": "old"}, {"a/b": "new"}),
        ("new", ["put", "new"], {"a/b": "new"}, {"a/b": "new"}),
        (None, ["put", "new"], {}, {"a/b": "new"}),
        (None, ["create", "new"], {}, {"a/b": "new"}),
        ("old", ["delete"], {"a/b": "old"}, {}),
    ],
    ids=["replace", "repeat", "put", "create", "delete"],
)
def test_a_crash_at_any_step_leaves_all_of_the_old_or_all_of_the_new(
    tmp_path: Path, before: str | None, call: list[str], old: dict[str, str], new: dict[str, str]
) -> None:
    template = DiskObjects(tmp_path / "template")
    template.put("a/b", b"")
    template.delete("a/b")
    if before is not None:
        template.put("a/b", before.encode())
    with _python(CRASH_AT_EVERY_STEP, template.root, tmp_path / "root", *call) as process:
        outcomes = [json.loads(line) for line in process.communicate()[0].splitlines()]
        assert process.returncode == 0
    found = [outcome["found"] for outcome in outcomes]
    assert [outcome["killed"] for outcome in outcomes] == [True] * (len(outcomes) - 1) + [False]
    assert len(outcomes) > 5
    assert (found[0], found[-1]) == (old, new)
    assert all(outcome in (old, new) for outcome in found)
    assert all(outcome["writing"] == [] for outcome in outcomes)


CREATE = """
import sys
from pathlib import Path
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import ObjectExists
objects = DiskObjects(Path(sys.argv[1]))
print("ready", flush=True)
for key in sys.stdin:
    try:
        objects.create(key.strip(), sys.argv[2].encode() * 100_000)
        print("won", flush=True)
    except ObjectExists:
        print("lost", flush=True)
"""


def test_of_eight_processes_that_create_the_same_key_exactly_one_wins(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    with ExitStack() as stack:
        processes = [stack.enter_context(_python(CREATE, tmp_path, n)) for n in range(8)]
        assert [_answer(process) for process in processes] == ["ready"] * 8
        for turn in range(10):
            for process in processes:
                assert process.stdin
                process.stdin.write(f"race/{turn}\n")
                process.stdin.flush()
            outcomes = [_answer(process) for process in processes]
            assert sorted(outcomes) == ["lost"] * 7 + ["won"]
            assert objects.get(f"race/{turn}") == str(outcomes.index("won")).encode() * 100_000


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


# Root may write everywhere, so it becomes nobody first.
READ_AND_WRITE_AS_NOBODY = """
import os, sys
from pathlib import Path
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import ObjectsUnavailable
if os.geteuid() == 0:
    os.seteuid(65534)
objects = DiskObjects(Path(sys.argv[1]))
assert objects.get("a") == b"1" and objects.exists("a") and [stored.key for stored in objects.list()] == ["a"]
for change in (lambda: objects.put("a", b"2"), lambda: objects.create("b", b"2"), lambda: objects.delete("a")):
    try:
        change()
    except ObjectsUnavailable as error:
        print(error)
"""


def test_a_read_only_directory_can_be_read_and_says_what_to_do_when_written() -> None:
    directory = Path(mkdtemp())  # unlike tmp_path it can be opened to others
    try:
        objects = DiskObjects(directory / "root")
        objects.put("a", b"1")
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with _python(READ_AND_WRITE_AS_NOBODY, objects.root) as process:
            lines = process.communicate()[0].splitlines()
        assert process.returncode == 0
        assert len(lines) == 3
        assert all("Permission denied" in line and "let this user write there" in line for line in lines)
        assert objects.get("a") == b"1"
    finally:
        for path in directory.rglob("*"):
            path.chmod(0o755)
        shutil.rmtree(directory)


WRITE_BEYOND_THE_LIMIT = """
import resource, sys
from pathlib import Path
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import ObjectsUnavailable
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    DiskObjects(Path(sys.argv[1])).put("a", b"2" * (2 << 20))
except ObjectsUnavailable as error:
    print(error)
"""


def test_a_write_for_which_there_is_no_room_leaves_the_old_object_and_no_leftover(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.put("a", b"1")
    with _python(WRITE_BEYOND_THE_LIMIT, tmp_path) as process:
        lines = process.communicate()[0].splitlines()
    assert len(lines) == 1
    assert "File too large" in lines[0]
    assert objects.get("a") == b"1"
    assert _bytes_being_written(tmp_path) == 0


def test_a_file_in_place_of_the_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectsUnavailable, match=str(tmp_path / "file")):
        DiskObjects(tmp_path / "file").put("a", b"")


def test_a_key_above_or_below_another_is_refused_and_both_stay_as_they_were(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.put("a/b", b"1")
    with pytest.raises(InvalidKey, match="objects below"):
        objects.put("a", b"2")
    with pytest.raises(InvalidKey, match="is an object"):
        objects.put("a/b/c", b"2")
    assert objects.get("a/b") == b"1"
    assert [stored.key for stored in objects.list()] == ["a/b"]


def test_an_object_replaced_there_and_back_while_it_is_read_is_not_called_corrupt(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.put("a", b"first")
    turns = iter([b"second", b"first"])

    def read_between_two_writes(path: Path) -> tuple[bytes, str]:
        objects.put("a", next(turns, b"first"))
        data = path.read_bytes()
        objects.put("a", next(turns, b"first"))
        return data, hashlib.sha256(data).hexdigest()

    assert objects._verified("a", read_between_two_writes) == b"first"


def test_the_whole_listing_is_in_the_order_of_the_keys(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    keys = ["B", "_", "a", "b-c", "b.c/d", "b/c", "b/d/e", "b0"]
    for key in reversed(keys):
        objects.put(key, b"")
    assert [stored.key for stored in objects.list()] == keys == sorted(keys)


def test_sha256sum_verifies_a_store_by_its_seals(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    for key in ("a", "b/c"):
        objects.put(key, b"old")
        objects.put(key, key.encode())
    objects.put("gone", b"")
    objects.delete("gone")
    command = "cat .rl-objects/sha256/* | sha256sum --strict --check"
    checked = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(checked.stdout.splitlines()) == ["a: OK", "b/c: OK"]


def test_a_large_file_does_not_pass_through_memory(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(50 * MEGABYTE)
    objects = DiskObjects(tmp_path / "root")
    tracemalloc.start()
    try:
        objects.upload("a", tmp_path / "large")
        objects.download("a", tmp_path / "copy")
        assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
    finally:
        tracemalloc.stop()
    assert (tmp_path / "copy").stat().st_size == 50 * MEGABYTE
