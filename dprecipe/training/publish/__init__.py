"""Results that leave a run: the release, or what waits for it, and the private report."""
