"""`agent.rl.alert.v1`: something that a superior agent or a person has to know now.

It is an addition to the specification, which says when to alert, not on which subject. What concerns NATS itself leaves
by file and webhook, and is told here once NATS is back.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from rl_pipeline.contracts.fields import ClosedObject, Identifier, Name, Timestamp, optional
from rl_pipeline.contracts.report import LongText

AlertKind = Literal[
    "training_failed",
    "validation_failed",
    "model_rolled_back",
    "rollout_waits",
    "collection_errors",
    "nats_lost",
    "warehouse_lost",
    "service_unreachable",
    "runs_failed",
]


class Alert(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "alert_id": "training_failed-1f0d5a2c9b7e4d36",
                "kind": "training_failed",
                "severity": "critical",
                "timestamp": "2025-12-08T14:10:00Z",
                "subject": "manual-5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
                "text": "3 trainings failed in a row, the last with OOM",
                "next_step": "rl-pipeline jobs manual-5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
            }
        ]
    },
):
    """One alert for one episode, however long it lasts."""

    model_config = ConfigDict(title="Agent RL Alert")

    alert_id: Identifier = Field(description="The same for the whole episode.")
    kind: AlertKind = Field(description="What happened.")
    severity: Literal["critical", "warning"] = Field(description="How grave it is.")
    timestamp: Timestamp = Field(description="When it was noticed.")
    subject: Name | None = optional("The job, model, run or address that it is about.")
    text: LongText = Field(description="What happened, with its figures.")
    next_step: LongText = Field(description="What to do now.")
