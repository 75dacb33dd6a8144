"""When somebody has to know at once: what is looked for, and when a thing that goes on is one episode."""
