"""The `rl-trainer` as a superior speaks to it: one sentence in, one answer out."""

from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from rl_pipeline.service.access import Running, answered, needs, read_body, takes
from rl_pipeline.service.answers import CoordinatorAnswer, JobAnswer, LoopAnswer
from rl_pipeline.service.keys import ApiKey
from rl_pipeline.service.routers.bodies import Sentence
from rl_pipeline.service.training_desk import TrainingDesk
from rl_pipeline.training.orders import CancelOrder, LoopOrder, StatusOrder, understood
from rl_pipeline.training.spoken import spoken_request

router = APIRouter(tags=["coordinator"])


@router.post("/coordinator", response_model=CoordinatorAnswer, openapi_extra=takes(Sentence))
async def tell(request: Request, service: Running, key: Annotated[ApiKey, needs("train")]) -> Response:
    """Say what the trainer is to do: to train, to cancel a job, or to tell how things stand.

    A sentence that is not understood to its last word starts nothing, and is answered with what it could have said.
    """
    sentence = (await read_body(request, Sentence)).message
    training, order = service.training, understood(sentence)
    match order:
        case StatusOrder(job_id):
            job = await _job(training, job_id)
            return answered(CoordinatorAnswer(order="status", reply=_told(job), job_id=job_id, job=job))
        case CancelOrder(job_id):
            ended = await training.cancel(job_id, key.name, None)
            return answered(CoordinatorAnswer(order="cancel", reply=ended.message, job_id=job_id))
        case LoopOrder():
            return answered(CoordinatorAnswer(order="status", reply=_loop(await training.loop())))
    asked = spoken_request(sentence, job_id=f"manual-{uuid4()}", requester=key.name, now=service.now())
    started = await training.start(asked)
    config = asked.training_config
    return answered(
        CoordinatorAnswer(
            order="train",
            reply=started.message,
            job_id=started.job_id,
            sample_size=config.dataset.sample_size,
            last_days=config.dataset.filter.last_days,
            fell_back=started.fell_back,
        )
    )


async def _job(training: TrainingDesk, job_id: str) -> JobAnswer:
    return JobAnswer.model_validate_json(await training.status(job_id))


def _told(job: JobAnswer) -> str:
    done = job.progress.percent_complete if job.progress else None
    return f"{job.job_id} is {job.status}{f', {done:.0f} % done' if done is not None else ''}: {job.explanation}"


def _loop(loop: LoopAnswer) -> str:
    if loop.current:
        return f"{_told(loop.current)}; {loop.waiting} wait"
    return f"nothing trains, {loop.waiting} wait"
