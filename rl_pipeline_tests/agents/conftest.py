"""A gateway in front of two models that know the way, and outboxes."""

from rl_pipeline_tests.collection.recordings import compiled_rules, open_outbox, outbox_directory
from rl_pipeline_tests.serving.conftest import shared_gateway, world

__all__ = ["compiled_rules", "open_outbox", "outbox_directory", "shared_gateway", "world"]
