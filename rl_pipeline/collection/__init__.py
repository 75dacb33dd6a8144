"""What runs inside an agent: it needs a plain `pip install rl-pipeline` and nothing more.

`Recorder` and `recorded_tool` record what an agent does into an `Outbox`, which sends it. Whoever has whole messages
publishes them directly. Messages are checked against their contracts before they leave, and published so that each is
stored once.
"""

from rl_pipeline.collection.outbox import Counts, Outbox, OutboxLimits
from rl_pipeline.collection.publishing import outgoing_message, publish_nats, publish_trajectory
from rl_pipeline.collection.recorder import Recorder
from rl_pipeline.collection.recording import OpenTrajectory, current_trajectory
from rl_pipeline.collection.subscribing import LiveMessage, Subscription, subscribe_nats
from rl_pipeline.collection.tools import recorded_tool
from rl_pipeline.collection.turns import OpenTurn
from rl_pipeline.stores.jetstream import JetStream

__all__ = [
    "Counts",
    "JetStream",
    "LiveMessage",
    "OpenTrajectory",
    "OpenTurn",
    "Outbox",
    "OutboxLimits",
    "Recorder",
    "Subscription",
    "current_trajectory",
    "outgoing_message",
    "publish_nats",
    "publish_trajectory",
    "recorded_tool",
    "subscribe_nats",
]
