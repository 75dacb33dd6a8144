"""What a training is going to do, decided before it starts: sizes, spreading, presets, the machine, the base model."""
