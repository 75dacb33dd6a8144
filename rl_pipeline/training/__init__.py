"""From a request to a verified checkpoint: triggers, jobs, plans, attempts, the training program, checkpoints."""
