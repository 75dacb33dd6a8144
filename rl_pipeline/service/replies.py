"""`agent.rl.training.status.request`: how a job stands, asked and answered over NATS.

Any replica may answer: they are one queue group, and all of them read the same stores.
"""

from rl_pipeline.contracts.fields import ClosedObject, Identifier
from rl_pipeline.contracts.registry import validated
from rl_pipeline.contracts.strict_json import parse_strict_json
from rl_pipeline.errors import PipelineError
from rl_pipeline.service.problems import problem_of
from rl_pipeline.service.training_desk import TrainingDesk

STATUS_QUERY = "agent.rl.training.status.request"
QUEUE_GROUP = "rl-service"


class StatusQuery(ClosedObject):
    """Which job is asked about."""

    job_id: Identifier


async def answer_query(training: TrainingDesk, data: bytes) -> bytes:
    """The job's status as HTTP tells it, or a problem. Whoever asks is always answered."""
    try:
        asked = validated(StatusQuery, parse_strict_json(data))
        return await training.status(asked.job_id)
    except PipelineError as refused:
        return problem_of(refused).model_dump_json().encode()
