"""How this deployment reports, as a Dagster resource."""

import dagster as dg
from pydantic import Field

from rl_pipeline.observability.reports.findings import Limits
from rl_pipeline.observability.reports.periods import Period, parsed_period
from rl_pipeline.stores.topology import TRAJECTORIES


class ReportsResource(dg.ConfigurableResource[Limits]):
    """What reports compare with, and what they take for too much."""

    base_period: str | None = Field(None, description="<first day>/<last day>; else the first 7 days.")
    degradation_drop: float = Field(0.10, description="Drop of the raw reward that is degradation.")
    error_rate: float = Field(0.05, description="Share of failed sessions that is too much.")
    failures_in_a_row: int = Field(3, description="So many failed trainings in a row are critical.")

    def base(self) -> Period | None:
        """The period that outcomes are compared with, where one is set."""
        return parsed_period(self.base_period) if self.base_period else None

    def limits(self) -> Limits:
        """What the findings' rules go by."""
        return Limits(
            degradation_drop=self.degradation_drop,
            error_rate=self.error_rate,
            stream_bytes=TRAJECTORIES.max_bytes,
            stream_messages=TRAJECTORIES.max_messages,
            trainings_in_a_row=self.failures_in_a_row,
        )
