"""`Tracker` on MLflow: a server by `http://…`, or a database file by `sqlite:///…`.

MLflow is imported by the first tracker that is used (2 CPU seconds), and told to keep quiet first.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_pipeline.stores.tracker import (
    RegisteredVersion,
    RunOutcome,
    TrackedDataset,
    TrackedRun,
    TrackerRefused,
    TrackerUnavailable,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

# How much MLflow takes in one request, and of one parameter.
_METRICS_AT_ONCE = 1000
_PARAMETERS_AT_ONCE = 100
_PARAMETER_LENGTH = 6000

_STATUS: dict[RunOutcome, str] = {
    "completed": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "preempted": "KILLED",
}
# Read by MLflow from the environment. Its own defaults wait for minutes when the server is away.
_MANNERS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
_TRANSIENT = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"}


class MLflowTracker:
    """One experiment of an MLflow server or database, and its registry; reached when it is first used.

    `pages` is where people see it, where that is not `uri` itself.
    """

    def __init__(self, uri: str, *, pages: str | None = None, experiment: str = "rl_pipeline") -> None:
        self.uri = uri
        self._pages = pages or (uri if uri.startswith("http") else None)
        self._experiment = experiment
        self._opening = threading.Lock()
        self._opened: MlflowClient | None = None

    def start_run(self, job_id: str, attempt: int, tags: Mapping[str, str] | None = None) -> TrackedRun:
        with self.answers():
            started = self._find_run(job_id, attempt)
            if started is not None:
                self._client.update_run(started.run_id, status="RUNNING")
            else:
                identity = _identity(job_id, attempt)
                names = {"job_id": job_id, "attempt": str(attempt), "attempt_identity": identity}
                experiment_id = self._experiment_id()
                run = self._client.create_run(experiment_id, tags=names, run_name=f"{job_id} attempt {attempt}")
                started = _MLflowRun(self, self._client, experiment_id, run.info.run_id)
        started.set_tags(tags or {})
        return started

    def end_run(self, job_id: str, attempt: int, outcome: RunOutcome) -> None:
        with self.answers():
            started = self._find_run(job_id, attempt)
        if started is not None:
            started.end(outcome)

    def register(self, model: str, url: str, run_id: str, tags: Mapping[str, str] | None = None) -> RegisteredVersion:
        with self.answers():
            for version in self._client.search_model_versions(f"run_id = '{run_id}'"):
                if version.name == model and version.tags.get("checkpoint_url") == url:
                    return _registered(version)
            self._ensure_model(model)
            # A server takes no addresses of files that it could not have written itself.
            served_file = url.startswith("file:") and self.uri.startswith("http")
            version = self._client.create_model_version(
                model,
                f"runs:/{run_id}/checkpoint" if served_file else url,
                run_id=run_id,
                tags={**(tags or {}), "checkpoint_url": url},
                await_creation_for=0,
            )
        return _registered(version)

    def set_alias(self, version: RegisteredVersion, alias: str) -> None:
        with self.answers():
            self._client.set_registered_model_alias(version.model, alias, version.version)

    def find_alias(self, model: str, alias: str) -> RegisteredVersion | None:
        try:
            with self.answers():
                return _registered(self._client.get_model_version_by_alias(model, alias))
        except TrackerRefused as refused:
            cause = getattr(refused.__cause__, "error_code", None)
            if cause in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def remove_alias(self, model: str, alias: str, url: str) -> None:
        named = self.find_alias(model, alias)
        if named is not None and named.url == url:
            with self.answers():
                self._client.delete_registered_model_alias(model, alias)

    @property
    def _client(self) -> "MlflowClient":
        with self._opening:
            if self._opened is None:
                self._opened = _open(self.uri)
            return self._opened

    def page_of(self, experiment_id: str, run_id: str) -> str | None:
        """The address of a run for people."""
        return f"{_shown(self._pages).rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}" if self._pages else None

    def _find_run(self, job_id: str, attempt: int) -> "_MLflowRun | None":
        experiment_id, identity = self._experiment_id(), _identity(job_id, attempt)
        found = self._client.search_runs([experiment_id], f"tags.attempt_identity = '{identity}'", max_results=1)
        return _MLflowRun(self, self._client, experiment_id, found[0].info.run_id) if found else None

    def _experiment_id(self) -> str:
        while (found := self._client.get_experiment_by_name(self._experiment)) is None:
            with _made_by_another_is_fine():
                self._client.create_experiment(self._experiment)
        return found.experiment_id

    def _ensure_model(self, model: str) -> None:
        with _made_by_another_is_fine():
            self._client.create_registered_model(model)

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Turn what MLflow raises into the errors of the port."""
        _mind_manners()
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except MlflowException as error:
            if error.error_code in _TRANSIENT:
                raise self._unavailable(error) from error
            raise TrackerRefused(f"MLflow at {_shown(self.uri)} refused: {_first_line(error)}") from error
        except (SQLAlchemyError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> TrackerUnavailable:
        return TrackerUnavailable(
            f"MLflow at {_shown(self.uri)} does not answer ({type(error).__name__}): start it, or correct"
            " MLFLOW_TRACKING_URI."
        )


class _MLflowRun:
    def __init__(self, tracker: MLflowTracker, client: "MlflowClient", experiment_id: str, run_id: str) -> None:
        self._tracker = tracker
        self._client = client
        self._experiment_id = experiment_id
        self._run_id = run_id

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def url(self) -> str | None:
        return self._tracker.page_of(self._experiment_id, self._run_id)

    def log_parameters(self, parameters: Mapping[str, object]) -> None:
        from mlflow.entities import Param

        entries = [Param(name, str(value)[:_PARAMETER_LENGTH]) for name, value in parameters.items()]
        for start in range(0, len(entries), _PARAMETERS_AT_ONCE):
            self._log(params=entries[start : start + _PARAMETERS_AT_ONCE])

    def log_metrics(self, points: Sequence[tuple[Mapping[str, float], int, datetime]]) -> None:
        from mlflow.entities import Metric

        entries = [
            Metric(name, value, int(time.timestamp() * 1000), step)
            for figures, step, time in points
            for name, value in figures.items()
        ]
        for start in range(0, len(entries), _METRICS_AT_ONCE):
            self._log(metrics=entries[start : start + _METRICS_AT_ONCE])

    def log_dataset(self, dataset: TrackedDataset) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        described = Dataset(
            name=dataset.dataset_id,
            digest=dataset.manifest_hash[:36],
            source_type="http" if dataset.url.startswith("http") else "s3" if dataset.url.startswith("s3") else "local",
            source=json.dumps({"uri": dataset.url}),
            profile=json.dumps(dict(dataset.summary)),
        )
        with self._tracker.answers():
            tag = InputTag("mlflow.data.context", "training")
            self._client.log_inputs(self._run_id, [DatasetInput(described, [tag])])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        if tags:
            self._log(tags=[RunTag(name, value) for name, value in tags.items()])

    def end(self, outcome: RunOutcome) -> None:
        with self._tracker.answers():
            self._client.set_terminated(self._run_id, _STATUS[outcome])

    def _log(self, **batch: Any) -> None:
        with self._tracker.answers():
            self._client.log_batch(self._run_id, **batch)


def _identity(job_id: str, attempt: int) -> str:
    """A hash, because a filter is written in a language of its own, in which an id could say anything."""
    return hashlib.sha256(f"{attempt}/{job_id}".encode()).hexdigest()


def _mind_manners() -> None:
    """Before MLflow is imported: it reads some of them then."""
    for name, value in _MANNERS.items():
        os.environ.setdefault(name, value)


def _open(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    for logger in ("mlflow", "alembic"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    with _alone_with_the_file(uri):
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _registered(version: Any) -> RegisteredVersion:
    url = version.tags.get("checkpoint_url", version.source)
    return RegisteredVersion(version.name, str(version.version), url, version.run_id, dict(version.tags))


@contextmanager
def _made_by_another_is_fine() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def _alone_with_the_file(uri: str) -> Iterator[None]:
    """Let one process at a time open a database file: two that make its tables at once fail."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _shown(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//", uri)


def _first_line(error: Exception) -> str:
    return _shown(str(error).partition("\n")[0][:300])
