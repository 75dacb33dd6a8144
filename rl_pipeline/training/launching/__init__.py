"""Starting the training program, watching it, and telling how it ended."""
