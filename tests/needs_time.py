"""Marks tests that take minutes."""

from __future__ import annotations

import os

import pytest

needs_time = pytest.mark.skipif("DPRECIPE_ALL_TESTS" not in os.environ, reason="minutes; set DPRECIPE_ALL_TESTS=1")
"""Skips a test that would not fit into half an hour of CI, unless all tests are asked for."""
