"""Where data rest: a port (a Protocol with its contract) per kind of store, and the adapters behind it.

Ports import nothing heavy; an adapter's libraries load with the adapter's own module.
"""
