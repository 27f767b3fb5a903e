"""The program behind the wall."""
