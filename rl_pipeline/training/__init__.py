"""From a request to a verified checkpoint: triggers, jobs, plan, attempts, launcher, the training program, checkpoints."""
