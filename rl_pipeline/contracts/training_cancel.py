"""`agent.rl.training.cancel.v1`: a training job that was asked for is not wanted any more.

It is an addition to the specification, beside the request and the status.
"""

from pydantic import ConfigDict, Field

from rl_pipeline.contracts.fields import ClosedObject, Identifier, Name, Timestamp, optional


class TrainingCancel(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "training_job_id": "manual-5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
                "timestamp": "2025-12-08T13:20:00Z",
                "requester": "admin-manual",
                "reason": "The wrong base model.",
            }
        ]
    },
):
    """The end of one training job, wherever it stands. A job that has ended already stays as it is."""

    model_config = ConfigDict(title="Agent RL Training Cancellation")

    training_job_id: Identifier = Field(description="The job.")
    timestamp: Timestamp = Field(description="When it was cancelled.")
    requester: Name = Field(description="Who cancels, such as rl-trainer-subordinate or admin-manual.")
    reason: Name | None = optional("Why, for people.")
