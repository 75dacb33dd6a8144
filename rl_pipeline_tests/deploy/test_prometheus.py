"""The configuration of Prometheus and Alertmanager, by their own tools, and that nothing in it leads nowhere."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typer.testing import CliRunner

from rl_pipeline.cli import app
from rl_pipeline.embedded.ports import LOOPBACK, free_port
from rl_pipeline_tests.observability.scraping import (
    DEPLOY,
    receiving,
    running_alertmanager,
    running_prometheus,
    seconds_for_minutes,
    served,
)
from rl_pipeline_tests.waiting import wait_until

ALERTS = ("TrainingFailsInARow", "ModelValidationFailed", "DeploymentRolledBack", "RolloutRefused", "CollectionErrors")
OUT_OF_BAND = ("NatsUnreachable", "ServiceUnreachable", "WarehouseUnreachable")


class NoFigures(Collector):
    """Of a service that has nothing to tell."""

    def collect(self) -> Iterable[Metric]:
        return ()


def run(*command: str, directory: Path = DEPLOY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.promtool
def test_prometheus_takes_the_configuration_and_its_rules(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    (tmp_path / "prometheus" / "service-api.key").write_text("the key that the service has given to Prometheus")
    outcome = run("promtool", "check", "config", "prometheus/prometheus.yml", directory=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "2 rule files found" in outcome.stdout + outcome.stderr


@pytest.mark.promtool
def test_each_alert_fires_is_silent_just_below_and_clears() -> None:
    outcome = run("promtool", "test", "rules", "alerts.yml", directory=DEPLOY / "prometheus" / "tests")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    tested = (DEPLOY / "prometheus" / "tests" / "alerts.yml").read_text()
    names = {alert["alert"] for alert in alerts()}
    assert names == {*ALERTS, *OUT_OF_BAND}
    assert all(name in tested for name in names)


@pytest.mark.promtool
def test_the_rules_tests_can_fail(tmp_path: Path) -> None:
    for directory in ("rules", "tests"):
        (tmp_path / directory).mkdir()
        for file in (DEPLOY / "prometheus" / directory).glob("*.yml"):
            (tmp_path / directory / file.name).write_text(file.read_text().replace("> 0.10", "> 0.12"))
    outcome = run("promtool", "test", "rules", "alerts.yml", directory=tmp_path / "tests")
    assert outcome.returncode == 1
    assert "CollectionErrors" in outcome.stdout + outcome.stderr


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_what_an_alert_tells_people_to_run_exists(alert: dict[str, Any]) -> None:
    for command in re.findall(r"`rl-pipeline ([a-z -]+)`", alert["annotations"]["description"]):
        outcome = CliRunner().invoke(app, [*command.split(), "--help"])
        assert outcome.exit_code == 0, outcome.output


@pytest.mark.amtool
def test_alertmanager_takes_the_configuration() -> None:
    outcome = run("amtool", "check-config", "alertmanager/alertmanager.yml")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.amtool
@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_what_cannot_be_told_over_nats_goes_another_way(alert: dict[str, Any]) -> None:
    labels = [f"{name}={value}" for name, value in alert["labels"].items()]
    configuration = "--config.file=alertmanager/alertmanager.yml"
    outcome = run("amtool", "config", "routes", "test", configuration, f"alertname={alert['alert']}", *labels)
    receiver = outcome.stdout.strip()
    assert (receiver == "out-of-band") == (alert["alert"] in OUT_OF_BAND)
    assert receiver in {"operators", "on-call", "out-of-band"}


@pytest.mark.promtool
@pytest.mark.amtool
def test_the_loss_of_the_service_reaches_a_webhook_and_so_does_its_return(tmp_path: Path) -> None:
    """With NATS nowhere: Prometheus, Alertmanager and HTTP are all that it takes."""
    port = free_port()
    configuration = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    with receiving() as (url, received):
        for receiver in configuration["receivers"]:
            for webhook in receiver["webhook_configs"]:
                webhook["url"] = webhook["url"].replace("http://alert-receiver:9099", url)
        configuration["route"] |= {"group_wait": "0s", "group_interval": "1s"}
        with (
            running_alertmanager(tmp_path / "alertmanager", configuration) as manager,
            running_prometheus(
                tmp_path / "prometheus",
                {"rl-pipeline": [f"{LOOPBACK}:{port}"], "alertmanager": [manager]},
                alertmanager=manager,
                shorter=seconds_for_minutes,
            ) as prometheus,
        ):
            (first,) = wait_until(lambda: received[:1], "the alert at the webhook")
            assert first["path"] == "/out-of-band"
            assert first["status"] == "firing"
            assert {alert["labels"]["alertname"] for alert in first["alerts"]} == {"ServiceUnreachable"}
            assert prometheus.value('up{job="alertmanager"}') == 1
            with served(NoFigures(), port):
                resolved = wait_until(lambda: [each for each in received if each["status"] == "resolved"], "its end")
            assert resolved[0]["path"] == "/out-of-band"
