"""The training program's parts: the only place where torch, transformers, TRL and DeepSpeed are imported."""
