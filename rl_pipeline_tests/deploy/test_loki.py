"""Promtail reads what our processes write, and Loki keeps it for thirty days."""

import io
import json
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_pipeline.embedded.home import hold
from rl_pipeline.json_logs import IDS, json_handler
from rl_pipeline_tests.observability.scraping import DEPLOY


@pytest.fixture(scope="module")
def promtail() -> dict[str, Any]:
    (job,) = yaml.safe_load((DEPLOY / "loki" / "promtail.yml").read_text())["scrape_configs"]
    found: dict[str, Any] = job
    return found


def stage(promtail: dict[str, Any], name: str) -> Any:
    (found,) = [each[name] for each in promtail["pipeline_stages"] if name in each]
    return found


def test_logs_are_kept_for_thirty_days() -> None:
    loki = yaml.safe_load((DEPLOY / "loki" / "loki.yml").read_text())
    hours = re.fullmatch(r"(\d+)h", loki["limits_config"]["retention_period"])
    assert hours
    assert timedelta(hours=int(hours[1])) == timedelta(days=30)
    assert loki["compactor"]["retention_enabled"] is True, "without it nothing is ever deleted"


def test_promtail_reads_the_fields_that_are_written(promtail: dict[str, Any]) -> None:
    stream = io.StringIO()
    ids = dict.fromkeys(IDS, "1")
    record = logging.LogRecord("rl_pipeline.x", logging.INFO, "x.py", 1, "a line", (), None)
    vars(record).update(ids)
    json_handler("gateway", stream).handle(record)
    line = json.loads(stream.getvalue())
    read = stage(promtail, "json")["expressions"]
    assert set(read.values()) <= line.keys(), "each of them is in the line"
    assert {"trajectory_id", "job_id", "deployment_id"} <= set(stage(promtail, "structured_metadata"))
    assert set(stage(promtail, "labels")) == {"level", "component"}, "few values each"
    assert stage(promtail, "timestamp")["source"] in read


def test_promtail_looks_where_the_logs_are(promtail: dict[str, Any], tmp_path: Path) -> None:
    (target,) = promtail["static_configs"]
    pattern = target["labels"]["__path__"].replace("${RL_PIPELINE_HOME}", str(tmp_path))
    before, places, after = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern).groups()  # type: ignore[union-attr]
    with hold(tmp_path) as home:
        written = home.log("gateway")
    assert any(written.match(f"{before}{place}{after}") for place in places.split(","))
