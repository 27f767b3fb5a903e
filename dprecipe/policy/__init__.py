"""Policies: an organisation's rules for its recipes, runs and certificates. See docs/policy.md."""
