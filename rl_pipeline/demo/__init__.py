"""`make demo`: the whole loop, for real, on embedded servers: a small model gets better by its own experience, cycle by
cycle, and a sabotaged one is taken back."""

from rl_pipeline.demo.profile import DemoFailed, DemoProfile
from rl_pipeline.demo.running import run_demo

__all__ = ["DemoFailed", "DemoProfile", "run_demo"]
