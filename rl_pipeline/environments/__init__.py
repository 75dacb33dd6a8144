"""Worlds in which a policy can act: one port, and what stands behind it."""
