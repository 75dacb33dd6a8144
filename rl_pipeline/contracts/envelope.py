"""The envelope that some publishers put around a message. `registry.parse_message` takes it off."""

from pydantic import Field

from rl_pipeline.contracts.fields import ClosedObject, JsonObject, optional


class Envelope(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "id": "0b9f6c1e",
                "topic": "agent.rl.feedback.v1",
                "ts": "2025-12-08T12:07:00Z",
                "version": "v1",
                "source": "agent-zero",
                "correlation_id": "request-41",
                "labels": ["webui"],
                "payload": {
                    "feedback_id": "feedback-0f6c1c2e",
                    "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
                    "timestamp": "2025-12-08T12:07:00Z",
                    "kind": "thumbs_up",
                },
            }
        ]
    },
):
    """A message with the bookkeeping of the bus around it."""

    id: str = Field(description="Id of the event.")
    topic: str = Field(description="Subject of the payload; must be the subject on which the envelope travels.")
    ts: str = Field(description="When the event was made.")
    version: str = Field(description="Version of the payload's contract.")
    source: str = Field(description="Service that made the event.")
    payload: JsonObject = Field(description="The message itself.")
    correlation_id: str | None = optional("Event that this one answers.")
    parent_id: str | None = optional("Event that caused this one.")
    actor: str | None = optional("Person or agent on whose behalf it was made.")
    labels: list[str] | None = optional("Free labels.")
