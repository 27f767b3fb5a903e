"""The second-moment matrix of clipped rows, for `dp_pca`.

A row x is shrunk to norm <= 1 (in units of `row_norm`), and a unit of r rows contributes A = Σ y yᵀ over y = x/√r:
positive semidefinite with trace at most 1, however many rows it has. So

- add or remove, zero out: ‖A‖_F <= tr A <= 1;
- replace: ‖A − B‖_F² = ‖A‖² + ‖B‖² − 2⟨A, B⟩ <= 2, as ⟨A, B⟩ >= 0: at most √2, attained by orthogonal unit rows.

The Frobenius norm of a symmetric matrix is the L2 norm of its upper triangle with √2 off the diagonal, so noise of
standard deviation s on the diagonal and s/√2 off it is the Gaussian mechanism with noise s in those coordinates. ("s
on every entry of the upper triangle" is sound, too, and spends √2 more for large d.)

Rows are rounded towards 0 to multiples of 2^-18, which shortens them, and then products and sums are whole numbers
below 2^53: matrix products in float64 are exact in any order, and the sensitivities hold without a margin.

Source: Abadi et al. 2016, section 4; Dwork, Talwar, Thakurta & Zhang 2014, "Analyze Gauss".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.paid.rows import ReadRows, UnitRows, finite_rows
from dprecipe.data.preprocess import Floats

ROW_BITS = 18
BITS = 2 * ROW_BITS
_MARGIN = 1 - 2.0**-30
"""Margin for the rounding of norms, before rows are rounded towards 0."""


def sum_covariance(read: ReadRows, rows: UnitRows, row_norm: float) -> NDArray[np.int64]:
    """Returns Σ A in units of 2^-36, exact, int64 (D, D), symmetric. `read` gives vectors (B, D).

    A row with a feature that is not finite contributes nothing; a zero row nothing; no unit at all: zeros.
    """
    total: NDArray[np.int64] | None = None
    for part in rows.parts():
        y = round_rows(read(part.order), np.repeat(part.sizes, part.sizes), row_norm)
        # Exact: a part has at most 2^13 rows, or one unit, so that no sum of products passes 2^49.
        products = (y.T @ y).astype(np.int64)
        total = products if total is None else total + products
    if total is None:
        width = read(np.zeros(0, np.int64)).shape[1]
        return np.zeros((width, width), np.int64)
    return total


def round_rows(x: Floats, sizes: NDArray[np.int64], row_norm: float) -> NDArray[np.float64]:
    """Rows (B, D), clipped to norm 1 and divided by √(rows of their unit, (B,)), as whole numbers in units of 2^-18.

    Guarantees: over the rows of a unit squares add up to at most 2^36.
    """
    y = np.where(finite_rows(x)[:, None], x, 0).astype(np.float64)
    length = np.sqrt(np.einsum("nd,nd->n", y, y))
    y *= (_MARGIN * 2.0**ROW_BITS / (np.maximum(length, row_norm) * np.sqrt(sizes)))[:, None]
    rounded: NDArray[np.float64] = np.trunc(y)
    return rounded


def top_components(
    noisy: NDArray[np.float64], components: int, explained: float | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the leading eigenvectors of a noisy symmetric matrix, (D, components), and their eigenvalues, falling.

    With `explained`, as few as have this share of the sum of the positive eigenvalues, and zero columns for the others.
    Each vector's largest entry is positive. Public numbers of public numbers.
    """
    values, vectors = np.linalg.eigh(noisy)
    values, vectors = values[::-1], vectors[:, ::-1]
    top, basis = values[:components].copy(), vectors[:, :components].copy()
    basis *= np.where(basis[np.abs(basis).argmax(axis=0), np.arange(components)] < 0, -1.0, 1.0)
    if explained is not None:
        positive = np.maximum(values, 0.0)
        reached = np.cumsum(positive) >= explained * positive.sum() * (1 - 1e-12)
        chosen = min(components, int(reached.argmax()) + 1)
        basis[:, chosen:], top[chosen:] = 0.0, 0.0
    return basis, top


def noise_edge(features: int, scale: float) -> float:
    """Estimates the largest eigenvalue of the noise alone: what is below is noise. `scale`: its standard deviation
    on the diagonal, 1/√2 of that off it (Wigner's semicircle).
    """
    return scale * math.sqrt(2.0 * features)
