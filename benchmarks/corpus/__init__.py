"""Made-up trajectories that read like an agent's at work, for the benchmarks; the same seed gives the same ones."""

from benchmarks.corpus.trajectories import realistic_trajectories

__all__ = ["realistic_trajectories"]
