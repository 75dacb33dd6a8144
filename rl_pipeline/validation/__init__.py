"""Whether a checkpoint may be released: suites, scorers, statistics, verdicts."""
