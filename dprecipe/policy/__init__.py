"""Rules of an organisation: what its recipes, runs and certificates have to keep to. See docs/policy.md."""
