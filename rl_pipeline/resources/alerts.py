"""How alerts leave, and when something that goes on is one, as a Dagster resource."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.observability.notices.outbox import Way
from rl_pipeline.observability.notices.ways import FILE, NATS, WEBHOOK, to_file, to_nats, to_webhook
from rl_pipeline.stores.stream import Stream

_HEALTH_SECONDS = 5.0


class AlertsResource(dg.ConfigurableResource[None]):
    """The ways out of alerts, and what is watched from here."""

    file: str = Field(description="Every alert is a line of JSON at its end.")
    webhook_url: str = Field("", description="Every alert is posted here; empty for none.")
    after_failures: int = Field(3, description="So many failures in a row are an alert.")
    service_url: str = Field(description="The HTTP service, whose /health is asked.")

    def ways(self, stream: Callable[[], Stream]) -> Mapping[str, Way]:
        """By their names. `stream` connects to NATS when something is to be published."""
        ways = {FILE: to_file(Path(self.file)), NATS: to_nats(stream)}
        return ways | ({WEBHOOK: to_webhook(self.webhook_url)} if self.webhook_url else {})

    def service_answers(self) -> bool:
        """Whether the HTTP service is there. One that says that it is unwell is."""
        address = f"{self.service_url.rstrip('/')}/health"
        try:
            with urllib.request.urlopen(address, timeout=_HEALTH_SECONDS):  # noqa: S310  # http and https alone
                return True
        except urllib.error.HTTPError as answered:
            answered.close()
            return True
        except (OSError, http.client.HTTPException):  # nobody, or somebody who speaks no HTTP
            return False
