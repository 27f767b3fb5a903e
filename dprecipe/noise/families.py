"""The six noise families by name, with the standard library alone: what a recipe or an event may say."""

from __future__ import annotations

import math

SHAPED = {"student_t": "df", "variance_gamma": "shape"}
"""The families with a parameter beyond their scale, and its name in a recipe."""

FAMILIES = ("gaussian", "laplace", "student_t", "cauchy", "variance_gamma", "sech")

MIN_DF, MAX_DF = 0.5, 1000.0
MAX_LAMBDA = 8
"""The largest λ of variance-gamma noise. With whole λ it is a sum of λ Laplace variables, and its density an elementary
function."""


def check(family: str, shape: float | None) -> None:
    """Checks that there is such a distribution.

    Raises:
        ValueError: an unknown family, a superfluous or missing shape, or a shape out of range.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown noise family {family!r}; known: {', '.join(FAMILIES)}")
    if (shape is not None) != (family in SHAPED):
        raise ValueError(f"{family}: " + ("expected a shape" if shape is None else "has no shape"))
    if shape is None:
        return
    if not math.isfinite(shape):
        raise ValueError(f"{family}: expected a finite shape, got {shape}")
    if family == "student_t" and not MIN_DF <= shape <= MAX_DF:
        raise ValueError(f"student_t: expected {MIN_DF:g} <= df <= {MAX_DF:g}, got {shape:g}")
    if family == "variance_gamma" and not (shape == int(shape) and 1 <= shape <= MAX_LAMBDA):
        raise ValueError(f"variance_gamma: expected a whole λ from 1 to {MAX_LAMBDA}, got {shape:g}")
