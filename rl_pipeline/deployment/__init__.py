"""How a validated model comes into service, on evidence, and out of it again."""
