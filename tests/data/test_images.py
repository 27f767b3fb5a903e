"""Images are decoded by several threads."""

from __future__ import annotations

import gc
import io
import threading

import numpy as np
import pytest

from dprecipe.data.images import ImageForm, decoding_images
from dprecipe.data.problems import Problems

image = pytest.importorskip("PIL.Image", reason="pillow is not installed")


def test_threads_leave_the_collection_of_garbage_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a setting of the process: of two threads that pause it at once, one could leave it off."""
    content = io.BytesIO()
    image.fromarray(np.full((2, 2), 7, np.uint8)).save(content, "PNG")
    paused: list[str] = []
    monkeypatch.setattr(gc, "disable", lambda: paused.append(threading.current_thread().name))
    with decoding_images(ImageForm((4, 4, 1), "stretch")) as decode:
        pixels = decode([content.getvalue()] * 20, "t", str, Problems(private=False))
    assert (pixels == 7).all()
    assert not any(name.startswith("images") for name in paused)
