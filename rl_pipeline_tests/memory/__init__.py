"""Tests of what agents remember."""
