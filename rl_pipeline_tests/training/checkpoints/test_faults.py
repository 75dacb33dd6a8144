"""Checkpoints under fire: processes killed while they save, bytes that rot, disks that fill up.

Each of the states holds its own step in every block of every file, so that a test can tell whether what it is given is
all of one state, whatever the manifest says.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_pipeline.training.checkpoints.manifest import MANIFEST, CheckpointCorrupt
from rl_pipeline.training.checkpoints.storage import newest_verified, state_directory, states, verify

BLOCKS = 2000
FILES = ("model.safetensors", "optimizer/rank_0.pt", "optimizer/rank_1.pt")

# What the children share: how a state is written, by us and by somebody who overwrites.
WRITING = f"""
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from rl_pipeline.training.checkpoints.storage import prune, saving, state_directory
def write(directory, step):
    for name in {FILES!r}:
        (directory / name).parent.mkdir(exist_ok=True)
        with (directory / name).open("w", buffering=1 << 14) as file:
            for _ in range(blocks):
                file.write(f"{{step:064d}}")
def save(root, step):
    meta = dict(job_id="job", step=step, created=datetime.now(UTC), metrics={{"loss": 1 / step}})
    with saving(state_directory(root, step), meta) as staging:
        write(staging, step)
root = Path(sys.argv[1])
blocks = {BLOCKS}
"""

SAVE_FOR_EVER = f"""{WRITING}
step = int(sys.argv[2])
print("READY", flush=True)
while True:
    step += 1
    save(root, step)
    print(step, flush=True)
    prune(root, 2)
"""

OVERWRITE_FOR_EVER = f"""{WRITING}
step = int(sys.argv[2])
root.mkdir(exist_ok=True)
print("READY", flush=True)
while True:
    step += 1
    write(root, step)
    print(step, flush=True)
"""


@contextmanager
def running(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, killed at the end if it is still there."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_while_it_saves(program: str, root: Path, step: int, chance: random.Random) -> int:
    """Let `program` save one state after the other, kill it at some moment, and return the last step it reported."""
    with running(program, root, step) as process:
        assert process.stdout
        assert process.stdout.readline() == "READY\n"
        reported = [process.stdout.readline() for _ in range(chance.randint(1, 3))]
        time.sleep(chance.uniform(0, 0.03))  # any moment will do
        process.kill()
        reported += process.stdout.read().splitlines()
        assert process.wait() == -9
    return int(reported[-1])


def step_within(directory: Path) -> int | None:
    """The step of which all of the state is there; None when it is not all of one state."""
    found = set()
    for name in FILES:
        if not (directory / name).is_file():
            return None
        text = (directory / name).read_text()
        found |= {text[start : start + 64] for start in range(0, len(text), 64)} | {len(text)}
    sizes = {each for each in found if isinstance(each, int)}
    blocks = {each for each in found if isinstance(each, str)}
    return int(blocks.pop()) if sizes == {64 * BLOCKS} and len(blocks) == 1 else None


@pytest.mark.soak
def test_a_process_killed_while_it_saves_never_costs_a_state_that_was_saved(
    tmp_path: Path, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    kills = soak_count(6, 60)
    chance = random.Random(5)
    done = torn = step = 0
    while done < kills or (torn == 0 and done < 60):
        done += 1
        saved = killed_while_it_saves(SAVE_FOR_EVER, tmp_path, step, chance)
        torn += any(tmp_path.glob(".saving-*"))
        reports: list[CheckpointCorrupt] = []
        newest = newest_verified(tmp_path, reports.append)
        assert newest is not None
        assert reports == [], "a killed save looks like a corrupt state"
        step = verify(newest).meta.step
        assert step_within(newest) == step
        assert step >= saved > 0
        assert not list(tmp_path.glob(".*")), "something is left of the killed save"
    record_property("kills while saving", done)
    record_property("of these in the middle of a state", torn)
    assert torn > 0, "no kill hit a save: the test shows nothing"


@pytest.mark.soak
def test_the_same_kills_tear_a_state_that_is_overwritten(
    tmp_path: Path, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    kills = soak_count(0, 60)
    chance = random.Random(5)
    done = torn = 0
    while done < kills or (torn == 0 and done < 60):
        killed_while_it_saves(OVERWRITE_FOR_EVER, tmp_path, done * 1000, chance)
        done += 1
        torn += step_within(tmp_path) is None
    record_property("kills while overwriting", done)
    record_property("states lost", torn)
    assert torn > 0, "the kills above could not fail"


# Kills itself at the n-th thing it asks of the file system, for every n until the work is done without being killed.
KILLED_AT_EVERY_STEP = f"""{WRITING}
import json, os, shutil, signal
from rl_pipeline.training.checkpoints.storage import amend, newest_verified, state_directory, verify
blocks = 1  # so that many steps take little time
calls = {{
    "save": lambda root: save(root, 3),
    "replace": lambda root: save(root, 2),
    "prune": lambda root: prune(root, 1),
    "amend": lambda root: amend(state_directory(root, 2), {{"MODEL_CARD.md": b"# card"}}),
    "look": lambda root: newest_verified(root, lambda corrupt: None),
}}
template, call = root, calls[sys.argv[3]]
root = Path(sys.argv[2])
at = 0
while True:
    at += 1
    shutil.copytree(template, root)
    child = os.fork()
    if child == 0:
        left = at
        def hook(event, arguments):
            global left
            if event == "open" or event.startswith(("os.", "shutil.")):
                left -= 1
                if left == 0:
                    os.write(1, json.dumps({{"killed at": event}}).encode() + b"\\n")
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        call(root)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    corrupt = []
    newest = newest_verified(root, lambda each: corrupt.append(each.problem))
    print(json.dumps({{
        "newest": newest and newest.name,
        "files": sorted(verify(newest).files) if newest else [],
        "corrupt": corrupt,
        "all": sorted(path.name for path in root.iterdir()),
    }}), flush=True)
    save(root, 9)
    assert newest_verified(root) == state_directory(root, 9)
    shutil.rmtree(root)
    if not os.WIFSIGNALED(status):
        sys.exit(os.WEXITSTATUS(status))
"""


@pytest.mark.parametrize(
    ("call", "newest", "left"),
    [
        ("save", {"step-00000002", "step-00000003"}, [2, 3]),
        ("replace", {"step-00000002"}, [2]),
        ("prune", {"step-00000002"}, [1, 2]),
        ("amend", {"step-00000002"}, [2]),
        ("look", {"step-00000002"}, [2]),
    ],
)
def test_a_kill_at_any_step_leaves_a_whole_state_and_no_corrupt_one(
    tmp_path: Path, call: str, newest: set[str], left: list[int]
) -> None:
    template = tmp_path / "template"
    with running(f"{WRITING}\nblocks = 1\nsave(root, 1), save(root, 2)", template) as process:
        assert process.wait() == 0
    if call == "look":
        shutil.copytree(template / "step-00000002", template / ".saving-step-00000003")
        (template / "step-00000002").rename(template / ".replaced-step-00000002")
        shutil.copytree(template / "step-00000001", template / ".removing-step-00000000")
    with running(KILLED_AT_EVERY_STEP, template, tmp_path / "root", call) as process:
        lines = [json.loads(line) for line in process.communicate()[0].splitlines()]
        assert process.returncode == 0
    events = [line["killed at"] for line in lines if "killed at" in line]
    outcomes = [line for line in lines if "newest" in line]
    assert len(events) == len(outcomes) - 1 > 5
    assert "os.rename" in events
    assert {outcome["newest"] for outcome in outcomes} == newest
    assert all(outcome["corrupt"] == [] for outcome in outcomes)
    assert all(name.startswith("step-") for outcome in outcomes for name in outcome["all"])
    assert {len(outcome["all"]) for outcome in outcomes} == set(left)
    if call == "amend":
        assert {len(outcome["files"]) for outcome in outcomes} == {3, 4}


def _flip_a_bit(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _zero_the_end(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, chance.randrange(size - 1))
    os.truncate(path, size)


CORRUPTIONS: dict[str, Callable[[Path, random.Random], object]] = {
    "truncated": _truncate,
    "bit flipped": _flip_a_bit,
    "missing": lambda path, _: path.unlink(),
    "zeros at the end": _zero_the_end,
    "another file's content": lambda path, _: shutil.copyfile(_like(path, step=1), path),
    "linked": lambda path, _: (path.unlink(), path.symlink_to(_like(path, step=2))),
}


def _like(path: Path, step: int) -> Path:
    """The same file of another state."""
    return Path(str(path).replace("step-00000003", f"step-{step:08d}"))


# A limit on the size of files refuses as a full disk does, and needs no rights.
SAVE_WITHOUT_ROOM = f"""{WRITING}
import json, resource
from rl_pipeline.training.checkpoints.storage import CheckpointStorageFailed
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    save(root, 4)
except CheckpointStorageFailed as error:
    print(json.dumps([error.code, str(error)]))
"""


@pytest.fixture(scope="module")
def three_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    with running(f"{WRITING}\nfor step in (1, 2, 3): save(root, step)", root) as process:
        assert process.wait() == 0
    return root


@pytest.mark.soak
def test_a_corrupt_state_is_never_used_and_the_newest_whole_one_is(
    three_states: Path,
    tmp_path: Path,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    chance = random.Random(6)
    rounds = soak_count(12, 60)
    kinds = [*CORRUPTIONS, "full disk"]
    for number in range(rounds):
        kind = kinds[number % len(kinds)]
        root = shutil.copytree(three_states, tmp_path / str(number))
        spoilt = state_directory(root, 3)
        if kind == "full disk":
            with running(SAVE_WITHOUT_ROOM, root, chance.randrange(1, 64 * BLOCKS)) as process:
                assert json.loads(process.communicate()[0])[0] == "INFRA"
        else:
            CORRUPTIONS[kind](spoilt / chance.choice([*FILES, MANIFEST]), chance)
            assert states(root)[0] == spoilt, "whoever trusts names alone would use it"
            if chance.random() < 0.3:
                _flip_a_bit(state_directory(root, 2) / FILES[0], chance)
        reports: list[CheckpointCorrupt] = []
        newest = newest_verified(root, reports.append)
        assert newest is not None
        expected = 3 - len(reports)
        assert len(reports) in ((0,) if kind == "full disk" else (1, 2)), kind
        assert (newest, step_within(newest)) == (state_directory(root, expected), expected)
        assert len(list(root.glob("*.corrupt"))) == len(reports)
        assert not list(root.glob(".*"))
    record_property("corruptions", rounds)


def test_a_full_disk_is_named_and_what_was_saved_stays(three_states: Path, tmp_path: Path) -> None:
    """On a real small file system where one may be mounted, else under a limit."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1536k none "$0" && exec "$@"',
    ]
    may_mount = shutil.which("unshare") and subprocess.run([*mounted, small, "true"], check=False).returncode == 0
    look = """
import shutil
from rl_pipeline.training.checkpoints.storage import newest_verified
print(json.dumps([newest_verified(root).name, sorted(path.name for path in root.iterdir())]))
"""
    fill = "import shutil, sys\nshutil.copytree(sys.argv[3], sys.argv[1], dirs_exist_ok=True)\n"
    command = [sys.executable, "-c", fill + SAVE_WITHOUT_ROOM + look, small, 0 if may_mount else 100_000, three_states]
    output = subprocess.check_output([*map(str, [*mounted, small] if may_mount else []), *map(str, command)], text=True)
    (code, error), (newest, present) = map(json.loads, output.splitlines())
    assert code == "INFRA"
    assert ("No space left on device" if may_mount else "File too large") in error
    assert "earlier checkpoints are as they were" in error
    assert newest == "step-00000003"
    assert present == ["step-00000001", "step-00000002", "step-00000003"]


def test_a_disk_that_fills_up_at_the_manifest_leaves_no_state_without_one(three_states: Path, tmp_path: Path) -> None:
    root = shutil.copytree(three_states, tmp_path / "root")
    full_at_last = SAVE_WITHOUT_ROOM.replace(
        "try:",
        "before = write\ndef write(*arguments):\n    before(*arguments)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\ntry:",
    )
    with running(full_at_last, root, 0) as process:
        code, error = json.loads(process.communicate()[0])
    assert code == "INFRA"
    assert "File too large" in error
    assert newest_verified(root) == state_directory(root, 3)
    assert len(list(root.iterdir())) == 3


SAVE_TENSORS_WITHOUT_ROOM = """
import json, resource, sys
from datetime import UTC, datetime
from pathlib import Path
import torch
from safetensors.torch import save_file
from rl_pipeline.training.checkpoints.storage import CheckpointStorageFailed, saving
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
tensors = {"weight": torch.zeros(1 << 20)}
for write in (
    lambda path: torch.save(tensors, path),
    lambda path: torch.save(tensors, path, _use_new_zipfile_serialization=False),
    lambda path: save_file(tensors, path),
):
    try:
        with saving(Path(sys.argv[1]) / "final", {"job_id": "j", "step": 1, "created": datetime.now(UTC)}) as staging:
            write(staging / "tensors")
    except CheckpointStorageFailed as error:
        print(json.dumps([error.code, str(error), list(map(str, Path(sys.argv[1]).iterdir()))]), flush=True)
"""


def test_a_full_disk_is_recognized_through_torch_and_safetensors(tmp_path: Path) -> None:
    with running(SAVE_TENSORS_WITHOUT_ROOM, tmp_path) as process:
        outcomes = [json.loads(line) for line in process.communicate()[0].splitlines()]
    assert [(code, left) for code, _, left in outcomes] == [("INFRA", [])] * 3
    assert all("free some space" in error and "\n" not in error for _, error, _ in outcomes)
