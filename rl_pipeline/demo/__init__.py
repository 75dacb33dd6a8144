"""`make demo`: the whole loop, for real, on embedded servers: a small model gets better by its own experience, cycle by
cycle, and a sabotaged one is taken back."""

from rl_pipeline.demo.profile import DemoFailed, DemoProfile
from rl_pipeline.demo.running import run_demo
from rl_pipeline.demo.telling import Telling

__all__ = ["DemoFailed", "DemoProfile", "Telling", "run_demo"]
