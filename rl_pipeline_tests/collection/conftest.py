"""Outboxes for the tests of the recorder."""

from rl_pipeline_tests.collection.recordings import compiled_rules, open_outbox, outbox_directory

__all__ = ["compiled_rules", "open_outbox", "outbox_directory"]
