"""States and models on disk and in the object store: whole, signed, described, kept as long as they should be."""
