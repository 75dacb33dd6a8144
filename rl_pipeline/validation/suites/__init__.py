"""The suites that ship: for the embedded model's world, and small general ones for language models."""
