"""The routes. Each reads a request, makes one call, and writes the answer."""
