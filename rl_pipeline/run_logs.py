"""What Dagster's runs say, as lines of JSON beside the logs of the processes that run for long (dagster.yaml names it).

Each run is a process of its own, whose output Dagster keeps for its UI; an audit reads one file, by the job's id. The
text of an error stands in Dagster alone: it may quote what somebody wrote.
"""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from rl_pipeline.json_logs import json_handler
from rl_pipeline.settings import load_settings

_FILE = "runs.log"
_JOB = "rl/job"


class RunLog(logging.Handler):
    """Writes what a run logs, its beginning and its end, and what went wrong."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(json_handler("runs", sys.stderr).formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of Dagster, whose `dagster_meta` says which run it is of."""
        meta: Mapping[str, Any] = getattr(record, "dagster_meta", {})
        event = meta.get("dagster_event")
        # Dagster tells of a run's own beginning and end as of its least step, for those who debug.
        is_of_run = event is not None and event.event_type.name.startswith("RUN_")
        level = max(record.levelno, logging.INFO) if is_of_run else record.levelno
        if level < (logging.INFO if event is None or is_of_run else logging.WARNING):
            return
        said = logging.LogRecord(
            f"run.{meta.get('job_name') or 'none'}",
            level,
            record.pathname,
            record.lineno,
            "%s: %s",
            (str(meta.get("run_id") or "")[:8], meta.get("orig_message", record.getMessage())),
            None,
        )
        if job := (meta.get("job_tags") or {}).get(_JOB):
            said.job_id = job
        try:
            self._write(f"{self.format(said)}\n")
        except OSError:  # a full disk ends no training: Dagster has the line too
            self.handleError(record)

    def _write(self, line: str) -> None:
        # Opened for each line: whenever Dagster asks for its handlers it closes all that there are.
        logs = load_settings().rl_pipeline_home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / _FILE).open("a") as file:
            file.write(line)
