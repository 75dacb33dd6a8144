"""The JetStream stream that agents publish to: the lineage's source, which Dagster watches and never writes."""

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, message_columns

trajectory_stream = dg.AssetSpec(
    key="trajectory_stream",
    description=(
        "What agents have published and retention still holds: the JetStream stream `RL_TRAJECTORIES` "
        "(`agent.rl.trajectory.v1`, 30 days, at most 1,000,000 messages). "
        "Each observation says how far it goes, how much waits to be ingested, and what is missing."
    ),
    group_name="ingestion",
    kinds={"nats"},
    owners=OWNERS,
    metadata=message_columns("trajectory.v1.schema.json"),
)
