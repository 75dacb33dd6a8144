"""`agent.rl.serving.outcome.v1`: what came of one session that the gateway served.

It is an addition to the specification: the evidence on which rollouts advance or are taken back.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from rl_pipeline.contracts.fields import ClosedObject, Count, Identifier, Name, NonNegativeNumber, Timestamp, optional


class ServingOutcome(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "session_id": "session-5f2b9c1de07a44b8a3c96d0e81f7b254",
                "model_id": "agent-zero-rl-v2.4",
                "generation": 7,
                "gateway": "gateway-1",
                "started_at": "2025-12-08T14:10:00Z",
                "ended_at": "2025-12-08T14:10:05Z",
                "requests": 3,
                "failed_requests": 1,
                "failed": True,
                "failure": "upstream_status",
                "deployment_id": "6c2e9f10-3a4b-4c5d-9e6f-7a8b9c0d1e2f",
                "step": 1,
            }
        ]
    },
):
    """One session, told once: when it first fails, when it is over, or when it had the time that each is looked at.

    What comes of it later, a failure or a rating, is told as a session that began then.
    """

    model_config = ConfigDict(title="Agent RL Serving Outcome")

    session_id: Name = Field(description="A keyed digest of what the caller calls the session.")
    model_id: Identifier = Field(description="The model that served it.")
    generation: Count = Field(description="Of the desired state under which it was routed.")
    gateway: Name = Field(description="Which gateway served it.")
    started_at: Timestamp = Field(description="Its first request, or what came of it late.")
    ended_at: Timestamp = Field(description="Its last request before this was told.")
    requests: Count = Field(description="Requests so far.")
    failed_requests: Count = Field(description="Those that failed for the caller.")
    failed: bool = Field(description="Whether any failed.")
    failure: Literal["upstream_unreachable", "upstream_status", "upstream_timeout", "upstream_broke_off"] | None = (
        optional("How the first of them failed.")
    )
    feedback: Literal["positive", "negative"] | None = optional("What its user thought, where they said.")
    latency_ms: NonNegativeNumber | None = optional("Mean time to an answer, in milliseconds.")
    prompt_tokens: Count | None = optional("Tokens that were read.")
    completion_tokens: Count | None = optional("Tokens that were written.")
    deployment_id: Identifier | None = optional("The rollout during which it was routed.")
    step: Count | None = optional("Step of that rollout.")
