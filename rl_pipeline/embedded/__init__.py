"""The servers that `rl-pipeline up` runs on one machine, each as a real process, and their supervisor."""
