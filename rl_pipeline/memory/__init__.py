"""What agents remember: what happened, what was learnt of it, and what to do; and how it is looked up and forgotten."""
