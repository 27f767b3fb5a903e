"""Projected noisy SGD of a logistic regression as a bare loop of numpy: batches of one random order, a ball."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tasks import read_adult, settings

given = settings()
(x, y), (x_test, y_test) = read_adult(Path(given.data_root))
x, x_test = (np.hstack([each, np.ones((len(each), 1), each.dtype)]) for each in (x, x_test))
signs = 2.0 * y - 1
rng = np.random.default_rng()
order = rng.permutation(len(x))
w = np.zeros(x.shape[1])
for _ in range(given.passes):
    for start in range(0, len(x), given.batch):
        batch = order[start : start + given.batch]
        margins = signs[batch] * (x[batch] @ w)
        gradient = -(signs[batch] / (1 + np.exp(margins))) @ x[batch] / len(batch)
        w -= given.rate * (gradient + rng.normal(0, given.noise, w.shape))
        w *= min(1, given.radius / np.linalg.norm(w))

print(f"accuracy {np.mean((x_test @ w > 0) == y_test):.2%}")
np.save(Path(given.out) / "model.npy", w)
