"""Finds secrets and personal data in text and JSON, and puts placeholders in their place.

Rules are data (`rules/*.toml`); what a rule can say is in `rule.py`.
"""
