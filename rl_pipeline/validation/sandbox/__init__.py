"""Runs programs that a model wrote, so that whatever they try ends with them."""
