"""Which of the end-to-end tests are for `make soak`."""

import os

# Each of its trainings takes a minute or two: `make soak` has the time.
collect_ignore = [] if os.environ.get("RL_PIPELINE_SOAK") else ["test_training_at_length.py"]
