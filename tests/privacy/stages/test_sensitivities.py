"""How far one unit moves the sums of a stage: stored values, and a search that attains them and never exceeds them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.stages.events import NoisyCovariance, NoisyMoments, moments_replaced_squared, moments_squared

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "stages.json").read_text())["records"]


def records(group):
    result = [record for record in GOLDEN if record["group"] == group]
    assert result
    return result


def test_stored_sensitivities_of_a_column():
    for record in records("stage_moments_add_remove_sensitivity"):
        weight, centre = record["inputs"]["lam"], record["inputs"]["c"]
        assert math.sqrt(moments_squared(weight, centre)) == pytest.approx(record["value"], rel=1e-9)
    for record in records("stage_moments_replace_sensitivity"):
        result = math.sqrt(moments_replaced_squared(record["inputs"]["lam"]))
        assert result == pytest.approx(record["value"], rel=record["tol"])


def test_stored_sensitivities_of_columns_with_a_count():
    for record in records("stage_moments_columns"):
        i = record["inputs"]
        event = NoisyMoments(i["columns"], i["lam"], i["c"], i["count_weight"], 3.0)
        assert [event.sensitivity, event.replaced_sensitivity] == pytest.approx(record["value"], rel=1e-9)
        assert event.noise_scale == pytest.approx(3 * record["value"][0], rel=1e-9)


@pytest.mark.parametrize(
    ("weight", "centre"), [(0.3, 0.0), (1.0, 1.0), (1.665, 1.0), (1.7, 0.5), (2.5, 0.6), (6.0, 1.0)]
)
def test_no_unit_moves_the_moments_further_and_some_move_them_as_far(weight, centre):
    """Units of up to four rows and three columns, each the mean of its rows' vectors, their corners among them."""
    rng = np.random.default_rng(7)
    columns, count = 3, 0.7
    event = NoisyMoments(columns, weight, centre, count, 1.0)
    u = np.where(rng.random((4000, 4, columns)) < 0.5, rng.choice([-1.0, 0.0, 1.0], (4000, 4, columns)), 0)
    u = np.where(rng.random((4000, 1, 1)) < 0.5, u, rng.uniform(-1, 1, u.shape))
    rows = rng.integers(1, 5, 4000)
    own = (np.arange(4) < rows[:, None])[:, :, None] / rows[:, None, None]
    vector = np.concatenate([(u * own).sum(1), (weight * (u**2 - centre) * own).sum(1)], axis=1)
    added = np.sqrt((vector**2).sum(1) + count**2)
    replaced = np.linalg.norm(vector[:-1] - vector[1:], axis=1)
    assert added.max() <= event.sensitivity * (1 + 1e-12)
    assert replaced.max() <= event.replaced_sensitivity * (1 + 1e-12)
    ends = np.array([0.0, 1.0])
    one = np.sqrt(columns * np.max(ends**2 + weight**2 * (ends**2 - centre) ** 2) + count**2)
    assert one == pytest.approx(event.sensitivity, rel=1e-12)
    x, y = np.meshgrid(np.linspace(-1, 1, 401), np.linspace(-1, 1, 401))
    far = np.sqrt(columns * np.max((x - y) ** 2 * (1 + weight**2 * (x + y) ** 2)))
    assert max(far, one) == pytest.approx(event.replaced_sensitivity, rel=1e-4)


def test_no_unit_moves_a_covariance_further():
    rng = np.random.default_rng(8)
    event = NoisyCovariance(4, 1.0)
    x = rng.normal(size=(5000, 3, 4))
    x *= (rng.random((5000, 3, 1)) / np.linalg.norm(x, axis=2, keepdims=True)) ** rng.integers(0, 2, (5000, 1, 1))
    x /= np.maximum(1, np.linalg.norm(x, axis=2, keepdims=True))
    moved = np.einsum("nri,nrj->nij", x, x) / 3
    assert np.linalg.norm(moved, axis=(1, 2)).max() <= 1 + 1e-12
    ratio = event.moved(Neighbouring.REPLACE_ONE)
    assert np.linalg.norm(moved[:-1] - moved[1:], axis=(1, 2)).max() <= ratio
    e = np.eye(4)
    assert np.linalg.norm(np.outer(e[0], e[0]) - np.outer(e[1], e[1])) == pytest.approx(ratio, rel=1e-15)
    assert ratio == pytest.approx(records("stage_pca_replace")[0]["value"], rel=1e-12)
