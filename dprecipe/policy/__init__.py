"""Policies: an organisation's rules for its recipes, runs and certificates. See docs/how-to/policy.md."""
