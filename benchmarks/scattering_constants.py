"""Constants for `scale` after `scattering` of colour photos of 32×32: of two public photographs, of no private record.

`python benchmarks/scattering_constants.py` prints that step of `recipes/cifar10-scattering.yaml`. The photographs come
with scikit-learn (`load_sample_images`, Creative Commons); 1,200 windows of 64 to 388 pixels are drawn from them, at
random sizes and places, and made as small as the images.
"""

from __future__ import annotations

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from dprecipe.data.image_steps import Scattering
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.schema import Scale, Step

WINDOWS = 1200
SIZE = 32
IMAGENET = Scale(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def windows() -> np.ndarray:
    """(WINDOWS, 3, SIZE, SIZE) bytes."""
    rng = np.random.default_rng(0)
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    result = []
    for _ in range(WINDOWS):
        photo = photos[rng.integers(2)]
        side = min(round(SIZE * 2 ** rng.uniform(1, 3.6)), *photo.size)
        left, top = (int(rng.integers(length - side + 1)) for length in photo.size)
        box = (left, top, left + side, top + side)
        result.append(np.asarray(photo.resize((SIZE, SIZE), Image.Resampling.LANCZOS, box=box)))
    return np.stack(result).transpose(0, 3, 1, 2)


def listed(numbers: np.ndarray) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)


def main() -> None:
    features = prepare_features(windows(), [Step(scale=IMAGENET), Step(scattering=Scattering(scales=2, angles=8))])
    mean, std = features.mean(axis=(0, 2, 3)), features.std(axis=(0, 2, 3))
    print(f"    - scale:\n        mean: [{listed(mean)}]\n        std: [{listed(std)}]")


if __name__ == "__main__":
    main()
