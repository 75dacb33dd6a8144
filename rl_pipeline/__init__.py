"""The closed loop that makes LLM agents better from their own experience."""
