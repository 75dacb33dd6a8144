"""A program that behaves as a test of the launcher asks: it moves, saves, hangs, fails, and has children."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rl_pipeline.training.launching.exits import PROGRESS_FILE, RESULT_FILE, Exit, FailureRecord, write_failure

DEAF_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("attempt", type=Path)
    parser.add_argument("--join", action="store_true", help="join the other processes as DeepSpeed does")
    parser.add_argument("--steps", type=int, default=3, help="0 for going on until it is stopped")
    parser.add_argument("--saves-for", type=float, default=0.0, help="seconds that it takes to save its state")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--children", action="store_true", help="leave a child that left the group and is deaf")
    parser.add_argument("--fails", action="store_true", help="the last rank fails, and says so")
    parser.add_argument("--dies", action="store_true", help="the last rank is killed")
    run(parser.parse_args())


def run(asked: argparse.Namespace) -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    terminated: list[bool] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if asked.deaf else lambda *_: terminated.append(True))
    if asked.children:
        subprocess.Popen([sys.executable, "-c", DEAF_CHILD], start_new_session=True)
    any_rank = join() if asked.join else bool
    presence = asked.attempt / f"rank{rank}.json"
    present = {"pid": os.getpid(), "environment": dict(os.environ), "waits": waits_of_groups() if asked.join else []}
    presence.with_suffix(".new").write_text(json.dumps(present))
    presence.with_suffix(".new").rename(presence)
    step = 0
    while asked.steps == 0 or step < asked.steps:
        step += 1
        time.sleep(0.05)
        if any_rank(bool(terminated)):
            time.sleep(asked.saves_for)
            (asked.attempt / f"saved{rank}").touch()
            sys.exit(Exit.SAVED)
        if rank == 0:
            with (asked.attempt / PROGRESS_FILE).open("a") as progress:
                progress.write(json.dumps({"phase": "training", "step": step}) + "\n")
        if step == 3 and rank == world - 1:
            misbehave(asked, rank)
    if rank == 0:
        (asked.attempt / RESULT_FILE).write_text(json.dumps({"steps": step, "processes": world}))


def misbehave(asked: argparse.Namespace, rank: int) -> None:
    if asked.fails:
        record = FailureRecord(code="DATA", message="A row is poisoned.", trajectory_ids=("t-1",), step=3, rank=rank)
        write_failure(asked.attempt, record)
        sys.exit(Exit.DATA)
    if asked.dies:
        os.kill(os.getpid(), signal.SIGKILL)


def join() -> Callable[[bool], bool]:
    import torch

    from rl_pipeline.training.plans.deepspeed_config import join_processes

    join_processes("cpu")

    def any_rank(flag: bool) -> bool:
        flags = torch.tensor([float(flag)])
        torch.distributed.all_reduce(flags)
        return flags.item() > 0

    return any_rank


def waits_of_groups() -> list[float]:
    """For how many seconds a process waits for the others: in the group of all, and in one as ZeRO makes it."""
    import torch
    from deepspeed.utils.groups import _clone_world_group

    groups = (torch.distributed.group.WORLD, _clone_world_group())
    options = [group._get_backend(torch.device("cpu")).options for group in groups]
    return [option._timeout.total_seconds() for option in options]


if __name__ == "__main__":
    main()
