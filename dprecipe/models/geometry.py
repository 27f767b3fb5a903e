"""The sizes of the networks of the zoo, in plain arithmetic: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """A convolution or pooling window, square."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def output(self, size: int) -> int:
        """Returns the length of the output along one axis; below 1 where the window does not fit."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


_BLOCK = (PoolWindow(3, 1, 1), PoolWindow(3, 1, 1), PoolWindow(2, 2))

_LENET = (PoolWindow(5, 1, 2), PoolWindow(2, 2), PoolWindow(5), PoolWindow(2, 2))

CNN_WINDOWS: dict[str, tuple[PoolWindow, ...]] = {
    "tempered-mnist": (PoolWindow(8, 2, 2), PoolWindow(2, 1), PoolWindow(4, 2), PoolWindow(2, 1)),
    "tempered-cifar": _BLOCK * 3,
    "lenet": _LENET,
    "lenet-norm": _LENET,
    "scattering": (PoolWindow(2, 2), PoolWindow(1), PoolWindow(3, 1, 1)),
}
"""The windows that an image passes through, in order, by preset."""


def length_after(windows: Sequence[PoolWindow], size: int) -> int:
    """Returns the length of one axis after all windows; 0 where one of them does not fit."""
    for window in windows:
        size = window.output(size)
        if size < 1:
            return 0
    return size


def smallest_size(preset: str) -> int:
    """Returns the smallest height (and width) of an image that the preset accepts."""
    return next(size for size in range(1, 1000) if length_after(CNN_WINDOWS[preset], size) > 0)


GROUPS = 16
"""Groups in the group normalisation of wide residual networks."""
MIN_WIDE_RESNET_SIZE = 4
"""Height and width of an image: the last stage sees a quarter of them, and a group is more than one number."""


def block_channels(depth: int, width: int) -> list[tuple[int, int, int, bool]]:
    """Lists the blocks of a wide residual network: channels before and after, stride, and whether a stage begins."""
    blocks = []
    before = 16
    for stage, after in enumerate((16 * width, 32 * width, 64 * width)):
        for number in range((depth - 4) // 6):
            blocks.append((before, after, 2 if stage and not number else 1, number == 0))
            before = after
    return blocks
