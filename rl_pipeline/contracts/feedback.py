"""`agent.rl.feedback.v1`: what a person thought of a trajectory, said outright or shown by what they did.

It names its trajectory by id alone and may arrive before or after it. Turning a kind into a score is the rewards' work.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rl_pipeline.contracts.fields import (
    ClosedObject,
    ContractModel,
    Identifier,
    Name,
    OpenObject,
    PositiveInteger,
    Timestamp,
    Uuid,
    optional,
    whole_number,
)

FeedbackKind = Literal["thumbs_up", "thumbs_down", "stars", "correction", "abandoned", "comment"]

# The same rules as `_kind_has_its_value`, for readers of the schema.
_KIND_HAS_ITS_VALUE = {
    "allOf": [
        {
            "if": {"properties": {"kind": {"const": "stars"}}, "required": ["kind"]},
            "then": {"required": ["rating"], "properties": {"rating": {"type": "integer"}}},
            "else": {"properties": {"rating": {"type": "null"}}},
        },
        {
            "if": {"properties": {"kind": {"const": "comment"}}, "required": ["kind"]},
            "then": {"required": ["text"], "properties": {"text": {"type": "string"}}},
        },
    ]
}


class _Opinion(ContractModel):
    """The content of feedback, wherever it travels."""

    kind: FeedbackKind = Field(
        description="thumbs_up, thumbs_down, stars and comment are said outright; correction (rework was asked for) "
        "and abandoned (the user gave up) are shown."
    )
    rating: Annotated[int, Field(ge=1, le=5), BeforeValidator(whole_number)] | None = optional(
        "Stars from 1 to 5; present exactly when the kind is stars."
    )
    text: Annotated[str, Field(min_length=1, max_length=100_000)] | None = optional(
        "What the user wrote, redacted; present at least when the kind is comment."
    )

    @model_validator(mode="after")
    def _kind_has_its_value(self) -> Self:
        if (self.kind == "stars") != (self.rating is not None):
            raise PydanticCustomError("rating_of_stars", "should have a rating exactly when kind is stars")
        if self.kind == "comment" and self.text is None:
            raise PydanticCustomError("text_of_comment", "should have a text when kind is comment")
        return self


class FeedbackSignal(
    _Opinion,
    OpenObject,
    json_schema_extra={**_KIND_HAS_ITS_VALUE, "examples": [{"kind": "thumbs_up"}, {"kind": "stars", "rating": 4}]},
):
    """Feedback that was known when the trajectory was published, inside its metadata."""

    timestamp: Timestamp | None = optional("When it was given.")


class FeedbackMetadata(OpenObject, json_schema_extra={"examples": [{"channel": "webui"}]}):
    """Whatever else is known about the feedback."""

    channel: Name | None = optional("Where it was given, such as webui, api or cli.")


class Feedback(
    _Opinion,
    ClosedObject,
    json_schema_extra={
        **_KIND_HAS_ITS_VALUE,
        "examples": [
            {
                "feedback_id": "feedback-0f6c1c2e",
                "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
                "session_id": "session-7",
                "user_id": "user-19",
                "timestamp": "2025-12-08T12:07:00Z",
                "kind": "stars",
                "rating": 4,
                "text": "Right answer, but it took a detour.",
                "metadata": {"channel": "webui"},
            },
            {
                "feedback_id": "feedback-0f6c1c2f",
                "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
                "timestamp": "2025-12-08T12:09:00Z",
                "kind": "correction",
            },
        ],
    },
):
    """Feedback on one trajectory. The same feedback_id is the same feedback, however often it arrives."""

    model_config = ConfigDict(title="Agent RL Feedback")

    feedback_id: Identifier = Field(description="Unique id of this feedback; repeats are ignored.")
    trajectory_id: Uuid = Field(description="The trajectory it is about, which may not have arrived yet.")
    session_id: Name | None = optional("The session in which the trajectory happened.")
    user_id: Name | None = optional("Pseudonymous id of the person; feedback is erased with them.")
    timestamp: Timestamp = Field(description="When it was given.")
    turn_id: PositiveInteger | None = optional("The turn it is about, if not about the whole trajectory.")
    metadata: FeedbackMetadata = Field(default_factory=FeedbackMetadata, description="Anything else worth keeping.")
