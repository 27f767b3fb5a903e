"""How many records go through a model at a time, and how many of their gradients are kept.

On a GPU the libraries choose by the shapes of tensors how numbers are computed, and round as they choose. There each
part of a batch is filled up to one size, a function of public numbers: else one more record would change the shape of
the last part, and with it how the gradients of others are rounded.
"""

from __future__ import annotations

import math

import torch

MIN_STORED_NUMBERS = 1 << 25
"""Numbers of gradients of single records that are kept from their norms to their sum, in all: 128 MiB."""
SHARE = 4
"""On a GPU a part of so many of the memory that is free may hold such gradients."""
STEP = 8
"""Sizes are multiples of this."""
SPREAD = 2.0
"""Most batches are no larger than this many standard deviations above the expected one."""


def one_size(device: torch.device) -> bool:
    """Whether all parts of batches have one size on this device."""
    return device.type == "cuda"


def widest_type(device: torch.device) -> torch.device:
    """Where float64 can be added up: on the same device, but for Apple's, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def max_stored_numbers(device: torch.device) -> int:
    """How many numbers of gradients of single records a sum may keep on this device, in single precision."""
    return MIN_STORED_NUMBERS if device.type == "cpu" else max(MIN_STORED_NUMBERS, free_bytes(device) // SHARE // 4)


def keeps_records(device: torch.device) -> bool:
    """Whether records are better kept on this device than fetched."""
    return device.type == "cuda"


def bytes_for_records(device: torch.device) -> int:
    """How many bytes of records are kept there."""
    return free_bytes(device) // SHARE


def free_bytes(device: torch.device) -> int:
    """Of a CUDA device: what nobody has, and what torch has and does not use; 0 where it can't be told."""
    if device.type != "cuda":
        return 0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device had no memory left; libraries below torch say so in words of their own."""
    words = ("out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def batch_size_bound(expected: float) -> float:
    """Few batches are larger, where so many records are expected."""
    return expected + SPREAD * math.sqrt(expected)


def size_for(expected: float, max_records: int) -> int:
    """How many records a part is for, where at most `max_records` go through the model at once.

    Batches of Poisson sampling are about as large as expected. Nearly all of them go in equal parts, of which only the
    last is filled up.
    """
    parts = math.ceil(batch_size_bound(expected) / max_records)
    return min(max_records, STEP * math.ceil(batch_size_bound(expected) / parts / STEP))


def size_on(device: torch.device, expected: float, max_records: int) -> int:
    """As `size_for`, where parts have one size; else `max_records`."""
    return size_for(expected, max_records) if one_size(device) else max_records
