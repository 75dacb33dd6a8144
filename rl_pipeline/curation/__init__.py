"""Which trajectories a training job learns from, and in what form: selection, splits, conversations, manifest."""
