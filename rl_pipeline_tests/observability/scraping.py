"""Figures served over HTTP as the service serves them, and real Prometheus and Alertmanager that look at them."""

import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from fastapi import FastAPI
from prometheus_client.registry import Collector

from rl_pipeline.embedded.ports import LOOPBACK, free_port
from rl_pipeline.observability.metrics_route import metrics_route
from rl_pipeline_tests.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"


@contextmanager
def served(collector: Collector, port: int | None = None) -> Iterator[str]:
    """The host and port of an application with the route."""
    application = FastAPI()
    application.include_router(metrics_route(collector))
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(application, host=LOOPBACK, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the application")
        yield f"{LOOPBACK}:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Prometheus:
    """A running server, and what it answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}") as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The series of an instant query, each with its value."""
        found = self.get("query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def value(self, expression: str) -> float:
        """Of the one series that there is, or that there is after the next scrape: one may fail on a busy machine."""
        ((_, value),) = wait_until(lambda: self.query(expression), expression)
        return float(value)

    def comes_to(self, expression: str, expected: float) -> None:
        """Wait until it has this value: figures that are slow to read come with a later scrape."""
        found: list[float] = []

        def is_so() -> bool:
            found[:] = [value for _, value in self.query(expression)]
            return found == [pytest.approx(expected)]

        try:
            wait_until(is_so, expression)
        except AssertionError:
            raise AssertionError(f"{expression} is {found}, not {expected}") from None

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"}

    def scrapes_of(self, job: str) -> int:
        """How often a job was scraped."""
        found = self.query(f'count_over_time(up{{job="{job}"}}[1h])')
        return int(found[0][1]) if found else 0

    def look_again(self, job: str = "rl-pipeline") -> None:
        """Wait until the job was scraped twice more: the second began after this was called."""
        before = self.scrapes_of(job)
        wait_until(lambda: self.scrapes_of(job) >= before + 2, f"two scrapes of {job}")


@contextmanager
def running_prometheus(
    directory: Path,
    targets: Mapping[str, list[str]],
    *,
    alertmanager: str | None = None,
    shorter: Callable[[str], str] = lambda rules: rules,
    key: str = "",
) -> Iterator[Prometheus]:
    """The configuration of deploy/prometheus with other addresses and a scrape every five seconds.

    `shorter` changes the text of the rules, where a test cannot wait as long as they do. `key` is the service's.
    """
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "1s"}
    configuration["scrape_configs"] = [
        {**job, "static_configs": [{"targets": targets[job["job_name"]]}]}
        for job in configuration["scrape_configs"]
        if job["job_name"] in targets
    ]
    assert {job["job_name"] for job in configuration["scrape_configs"]} == set(targets)
    managers = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
    configuration["alerting"] = {"alertmanagers": managers}
    (directory / "rules").mkdir(parents=True)
    for rules in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
        (directory / "rules" / rules.name).write_text(shorter(rules.read_text()))
    (directory / "service-api.key").write_text(key)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [
        *("prometheus", f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address={LOOPBACK}:{port}", "--log.level=warn"),
    ]
    url = f"http://{LOOPBACK}:{port}"
    with _running(command, directory / "prometheus.log", f"{url}/-/ready"):
        yield Prometheus(url)


@contextmanager
def running_alertmanager(directory: Path, configuration: Mapping[str, Any]) -> Iterator[str]:
    """The host and port of an Alertmanager on its own."""
    directory.mkdir(parents=True)
    (directory / "alertmanager.yml").write_text(yaml.safe_dump(dict(configuration)))
    address = f"{LOOPBACK}:{free_port()}"
    command = [
        *("prometheus-alertmanager", f"--config.file={directory / 'alertmanager.yml'}"),
        *(f"--storage.path={directory / 'data'}", f"--web.listen-address={address}", "--cluster.listen-address="),
    ]
    with _running(command, directory / "alertmanager.log", f"http://{address}/-/ready"):
        yield address


@contextmanager
def receiving() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Somebody's webhook: its address, and what came, each with the path that it came to."""
    received: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append({"path": self.path, **json.loads(body)})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    with ThreadingHTTPServer((LOOPBACK, 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def seconds_for_minutes(rules: str) -> str:
    """The rules with windows of 45 seconds and waits of 2."""
    rules = re.sub(r"\[\d+[mh]\]", "[45s]", rules)
    return re.sub(r"for: \d+m", "for: 2s", rules)


@contextmanager
def _running(command: list[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        wait_until(lambda: process.poll() is not None or _answers(ready), command[0])
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.1)
        return False
