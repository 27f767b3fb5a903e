"""Score against ε of several runs, claim by claim: `dprecipe compare`. See docs/compare.md."""
