"""A publisher in a process of its own: publishes until it is killed, and prints the ids that were acknowledged."""

import sys
from random import Random

from rl_pipeline.collection import publish_trajectory
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.ingestion.ingesting import NOW


def main() -> None:
    url, seed = sys.argv[1:]
    with JetStream.connect(url) as stream:
        for trajectory in sample_trajectories(10**9, now=NOW, randomness=Random(int(seed))):
            publish_trajectory(stream, trajectory)
            sys.stdout.write(f"{trajectory.trajectory_id}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
