"""Rollouts on a simulated clock, through the real judgement: what the statistics of releases are measured with."""

from benchmarks.rollouts.simulated import (
    HEALTHY,
    START,
    Course,
    Model,
    Traffic,
    World,
    in_order,
    simulate_rollout,
    simulated_windows,
    started,
)

__all__ = [
    "HEALTHY",
    "START",
    "Course",
    "Model",
    "Traffic",
    "World",
    "in_order",
    "simulate_rollout",
    "simulated_windows",
    "started",
]
