"""MassGen itself is 1.8 GB with what it needs: only `make soak` runs it, or who names a Python that has it."""

import os

PYTHON_WITH_MASSGEN = "RL_PIPELINE_MASSGEN_PYTHON"

collect_ignore = [] if {"RL_PIPELINE_SOAK", PYTHON_WITH_MASSGEN} & os.environ.keys() else ["test_released_massgen.py"]
