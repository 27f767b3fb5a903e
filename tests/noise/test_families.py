"""Which noise distributions there are."""

from __future__ import annotations

import math

import pytest

from dprecipe.noise.families import FAMILIES, MAX_DF, MAX_LAMBDA, MIN_DF, SHAPED, check


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_its_shape_and_no_other(family: str) -> None:
    shape = 2.0 if family in SHAPED else None
    check(family, shape)
    with pytest.raises(ValueError, match="shape"):
        check(family, None if shape else 2.0)


@pytest.mark.parametrize(
    ("family", "shape"), [("student_t", MIN_DF), ("student_t", MAX_DF), ("variance_gamma", float(MAX_LAMBDA))]
)
def test_the_ends_of_the_ranges_belong_to_them(family: str, shape: float) -> None:
    check(family, shape)


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("normal", None),
        ("", None),
        ("student_t", 0.49),
        ("student_t", 1001.0),
        ("student_t", math.nan),
        ("student_t", math.inf),
        ("variance_gamma", 0.0),
        ("variance_gamma", 1.5),
        ("variance_gamma", 9.0),
        ("variance_gamma", -math.inf),
        ("variance_gamma", math.nan),
    ],
)
def test_what_is_no_distribution(family: str, shape: float | None) -> None:
    with pytest.raises(ValueError, match=r"family|shape|df|λ"):
        check(family, shape)
