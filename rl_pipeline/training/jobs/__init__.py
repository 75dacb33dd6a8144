"""Training jobs: what was asked for, what became of it, and what follows."""
