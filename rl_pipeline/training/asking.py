"""How the pipeline itself asks for a training: evidence, one decision, and a request like anybody else's."""

from dataclasses import replace
from datetime import datetime

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.evidence import read_evidence
from rl_pipeline.training.triggers import Decision, OnItsWay, TriggerPolicy, Wait, decide, request_for

REQUESTER = "rl-pipeline"


def ask_if_due(
    messages: Stream,
    warehouse: Warehouse,
    policy: TriggerPolicy,
    *,
    trajectories: str,
    on_its_way: OnItsWay | None = None,
    scheduled_for: datetime | None = None,
    now: datetime,
) -> Decision | Wait:
    """Publish a request if one is due, and what was decided. `scheduled_for` is the time of the schedule's tick, and
    `on_its_way` a model that may soon be in service.

    Repeating it asks for nothing more: until the request has become a job, the same decision has the same job id.
    """
    evidence = read_evidence(warehouse, trajectories, scheduled_for=scheduled_for, now=now)
    decided = decide(replace(evidence, on_its_way=on_its_way), policy)
    if isinstance(decided, Decision):
        message = outgoing_message(request_for(decided, policy, requester=REQUESTER, now=now))
        messages.publish(message.subject, message.data, message.message_id, message.headers)
    return decided
