"""What the benchmark of redaction's quality is made of: the sets, the tools that are compared, and the scores."""
