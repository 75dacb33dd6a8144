"""The training program in processes of its own that are born with everything imported.

They are real processes with real signals, limits and exit codes; only the ten seconds of imports are paid once, by the
server that they are forked from.
"""

import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from rl_pipeline.embedded.ports import free_port
from rl_pipeline.training.work_directory import WorkDirectory

# Nobody answers there, and at once.
NOWHERE = {
    "NATS_URL": "nats://127.0.0.1:1",
    "MLFLOW_TRACKING_URI": "http://127.0.0.1:1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
_PRELOADED = [
    "deepspeed",
    "mlflow",
    "rl_pipeline.training_program",
    "rl_pipeline.opening",
    "rl_pipeline.stores.mlflow_tracker",
    "rl_pipeline.training.program.listeners",
    "rl_pipeline.training.program.running",
    "rl_pipeline.training.program.imitation",
    "rl_pipeline.training.program.online",
    "rl_pipeline.training.program.preference",
]
_QUIET = {
    "TORCHDYNAMO_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
}


@contextmanager
def running(
    work: WorkDirectory, processes: int = 1, largest_file: int | None = None, **environment: str
) -> Iterator[list[BaseProcess]]:
    """The processes of an attempt; whatever is left of them at the end is killed."""
    os.environ.update(_QUIET)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    variables = {**NOWHERE, **environment}
    if processes > 1:
        variables |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        ranks.append(context.Process(target=_program, args=(work, {**variables, **place}, largest_file)))
    for process in ranks:
        process.start()
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.join()


def run(work: WorkDirectory, processes: int = 1, largest_file: int | None = None, **environment: str) -> int:
    """The exit code of an attempt that is left to itself; of several processes the highest."""
    with running(work, processes, largest_file, **environment) as ranks:
        for process in ranks:
            process.join()
        return max(process.exitcode or 0 for process in ranks)


def log_of(work: WorkDirectory) -> str:
    """What the processes of an attempt printed."""
    return "\n".join(file.read_text() for file in sorted(work.attempt_directory.glob("rank-*.log")))


def _program(work: WorkDirectory, environment: dict[str, str], largest_file: int | None) -> None:
    os.environ.update(environment)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    with Path(work.attempt_directory, f"rank-{environment.get('RANK', '0')}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv = ["training_program", "--work", str(work.root), "--attempt", str(work.attempt)]
    from rl_pipeline.training_program import main

    main()
