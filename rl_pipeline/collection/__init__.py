"""What runs inside an agent: it needs a plain `pip install rl-pipeline` and nothing more.

Messages are checked against their contracts before they leave, and published so that each is stored once.
"""

from rl_pipeline.collection.publishing import outgoing_message, publish_nats, publish_trajectory
from rl_pipeline.collection.subscribing import LiveMessage, Subscription, subscribe_nats
from rl_pipeline.stores.jetstream import JetStream

__all__ = [
    "JetStream",
    "LiveMessage",
    "Subscription",
    "outgoing_message",
    "publish_nats",
    "publish_trajectory",
    "subscribe_nats",
]
