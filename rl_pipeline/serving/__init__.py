"""The gateway: who answers which request, with what, and what came of it."""
