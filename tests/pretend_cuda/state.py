"""What the devices of this process are, and how much of their memory is taken."""

from __future__ import annotations

import threading
import weakref

import torch

from tests.pretend_cuda import guard
from tests.pretend_cuda.roads import Settings

CPU = torch.device("cpu")
LOCK = threading.RLock()
"""Held while states change that all threads share."""
GRAIN = 512
"""Memory is given in pieces of so many bytes, as by torch's allocator for CUDA."""


class Device:
    """One device: its memory."""

    def __init__(self, index: int, total: int) -> None:
        self.name = torch.device("cuda", index)
        self.total, self.fraction = total, 1.0
        self.now = self.peak = self.reserved = 0

    @property
    def limit(self) -> int:
        return int(self.total * self.fraction)

    def take(self, size: int) -> None:
        with LOCK:
            if self.now + size > self.limit:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size / 2**30:.2f} GiB (pretended; {self.now / 2**30:.2f} "
                    f"GiB of {self.limit / 2**30:.2f} in use)"
                )
            self.now += size
            self.peak = max(self.peak, self.now)
            self.reserved = max(self.reserved, self.now)

    def give(self, size: int) -> None:
        with LOCK:
            self.now -= size


class State:
    """What the process pretends."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.devices: list[Device] = []
        self.waits: int = 0
        """What is done about waits: 0 nothing, 1 a warning, 2 an error."""

    @property
    def meta(self) -> bool:
        return self.settings.backing == "meta"

    @property
    def backing(self) -> torch.device:
        """Where the values are."""
        return torch.device("meta") if self.meta else CPU


STATE = State()


def index_of(device: object = None) -> int:
    """Return the number of a device, however it is named; of none, that of this thread's."""
    if isinstance(device, int):
        return device if device >= 0 else guard.get_current()
    index = None if device is None else torch.device(str(device)).index
    return guard.get_current() if index is None else index


class Block:
    """One storage on a device, for as long as a tensor has it."""

    __slots__ = ("__weakref__", "device", "size")

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, 0
        device.take(size)
        self.size = size

    def __del__(self) -> None:
        self.device.give(self.size)


_blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


def block_of(values: torch.Tensor, index: int) -> Block:
    """Return the block of the storage of some values, which is made where it has none, or has grown."""
    storage = values.untyped_storage()
    with LOCK:
        block = _blocks.get(storage._cdata)
        if block is None or block.size < storage.nbytes():
            block = Block(STATE.devices[index], -(-storage.nbytes() // GRAIN) * GRAIN)
            _blocks[storage._cdata] = block
    return block
