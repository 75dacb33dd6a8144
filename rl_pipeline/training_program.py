"""`python -m rl_pipeline.training_program`: one process of one attempt at a training job, started by the launcher.

All it has to know stands in the attempt's plan; from the environment it takes the place of this process among the
others, as the launcher says it, and from the settings the addresses of those who want to hear how it goes. Nothing
heavy is imported before the process is bound to its parent, its memory limit and its signals.
"""

import argparse
import contextlib
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rl_pipeline.training.launching.exits import EXIT_OF_FAILURE, Exit, write_failure
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.failing import failure_of
from rl_pipeline.training.program.reporting import Listener, Reporter
from rl_pipeline.training.program.stopping import StoppedOnRequest, StopRequest, die_with_parent
from rl_pipeline.training.work_directory import WorkDirectory

if TYPE_CHECKING:
    from rl_pipeline.stores.tracker import RunOutcome, TrackedDataset

_OUTCOMES: dict[Exit, "RunOutcome"] = {Exit.DONE: "completed", Exit.SAVED: "preempted"}

_log = logging.getLogger(__name__)


def main() -> None:
    """Train, and end with the exit code that says how it went."""
    arguments = _arguments()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    die_with_parent()
    stop = StopRequest()
    stop.listen()
    work = WorkDirectory(arguments.work, arguments.attempt)
    reporter = Reporter(None)
    try:
        plan = TrainingPlan.model_validate_json(work.plan_file.read_bytes())
        _settle(plan)
        if rank == 0:
            reporter = Reporter(work.progress_file, _listeners(plan, work))
        reporter.phase("loading")
        with _limited_memory(plan.distribution.memory_limit_gb):
            from rl_pipeline.training.program.running import run

            gc.freeze()  # what was imported stays: no collection has to look at it again
            code = run(plan, work, rank=rank, world_size=world_size, reporter=reporter, stop=stop)
    except StoppedOnRequest:
        code = Exit.SAVED
    except Exception as error:  # noqa: BLE001  what is raised here is what the exit code is for
        stop.waits = True
        code = _failed(error, work, rank, reporter.step_reached)
    stop.waits = True  # nothing interrupts the last words
    reporter.close(_OUTCOMES.get(code, "failed"))
    _leave(code)


def _failed(error: Exception, work: WorkDirectory, rank: int, step: int) -> Exit:
    record = failure_of(error, rank=rank, step=step)
    write_failure(work.attempt_directory, record)
    _log.error("the training failed (%s)\n%s", record.code, record.traceback)
    return EXIT_OF_FAILURE[record.code]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="the job's work directory")
    parser.add_argument("--attempt", type=int, required=True, help="the attempt whose plan is to be followed")
    parser.add_argument("--local_rank", type=int, default=0, help="given by some launchers, and not needed")
    return parser.parse_args()


def _settle(plan: TrainingPlan) -> None:
    """What the libraries read from the environment as they are imported; what the launcher has set stays."""
    defaults = {
        # The base model lies on disk: nobody has to be asked, and nobody told.
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }
    if plan.distribution.device == "cpu":
        defaults |= {
            "OMP_NUM_THREADS": str(plan.distribution.threads),
            "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
        }
    if plan.distribution.deepspeed and "RANK" not in os.environ:
        from rl_pipeline.embedded.ports import LOOPBACK, free_port

        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        defaults |= {**alone, "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if not plan.distribution.deepspeed:
        # Python's way to say that there is none: accelerate imports it, for seconds, wherever it finds it.
        sys.modules["deepspeed"] = None  # type: ignore[assignment]


@contextlib.contextmanager
def _limited_memory(gigabytes: float | None) -> Iterator[None]:
    """No more than so much for what this process writes to; the limit is off again when something went wrong."""
    if gigabytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # Not the address space: libraries and GPUs reserve far more of it than they ever use.
    resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 1e9), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _listeners(plan: TrainingPlan, work: WorkDirectory) -> list[Listener]:
    """Who hears of this training: NATS, MLflow, and Dagster if it started the program."""
    from rl_pipeline.errors import PipelineError
    from rl_pipeline.opening import open_stream
    from rl_pipeline.settings import load_settings
    from rl_pipeline.stores.mlflow_tracker import MLflowTracker
    from rl_pipeline.training.program.listeners import LogLines, StatusMessages, TrackedFigures

    listeners: list[Listener] = []
    if "DAGSTER_PIPES_CONTEXT" in os.environ:
        from dagster_pipes import open_dagster_pipes

        pipes = open_dagster_pipes()
        listeners.append(LogLines(pipes.log.info, pipes.close))
    try:
        settings = load_settings()
    except PipelineError as error:
        _log.warning("neither NATS nor MLflow hears of this training: %s", error)
        return listeners
    tracker = MLflowTracker(settings.mlflow_tracking_uri)
    return [
        *listeners,
        StatusMessages(plan, lambda: open_stream(settings)),
        TrackedFigures(plan, lambda: _tracked_dataset(plan, work), tracker),
    ]


def _tracked_dataset(plan: TrainingPlan, work: WorkDirectory) -> "TrackedDataset":
    from rl_pipeline.stores.tracker import TrackedDataset
    from rl_pipeline.training.program.dataset import manifest_of

    manifest = manifest_of(work.dataset)
    figures = {name: value for name, value in manifest.summary.items() if isinstance(value, int | float)}
    return TrackedDataset(manifest.dataset_id, manifest.hash, plan.dataset_url, figures)


def _leave(code: Exit) -> None:
    """End at once: what is left are threads that wait for servers, and peers that may be gone."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
