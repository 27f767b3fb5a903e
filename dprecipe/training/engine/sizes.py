"""The number of records that go through a model at a time, and of their gradients that are kept.

On a GPU the libraries choose by the shapes of tensors how numbers are computed, and rounding depends on that choice.
Each part of a batch is therefore padded there to one size, a function of public numbers. Otherwise one more record
would
change the shape of the last part, and with it how the gradients of others are rounded.
"""

from __future__ import annotations

import math

import torch

MIN_STORED_NUMBERS = 1 << 25
"""Numbers of gradients of single records that are kept from their norms to their sum, in all: 128 MiB."""
SHARE = 4
"""On a GPU, one part in this many of the free memory may hold such gradients."""
STEP = 8
"""Sizes are multiples of this."""
SPREAD = 2.0
"""Most batches are no larger than this many standard deviations above the expected one."""


def one_size(device: torch.device) -> bool:
    """Returns True if all parts of batches have one size on this device."""
    return device.type == "cuda"


def widest_type(device: torch.device) -> torch.device:
    """Returns the device where float64 can be added up: the same one, except for Apple's, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def max_stored_numbers(device: torch.device) -> int:
    """Returns how many numbers of single records' gradients a sum may keep on this device, in single precision."""
    return MIN_STORED_NUMBERS if device.type == "cpu" else max(MIN_STORED_NUMBERS, free_bytes(device) // SHARE // 4)


def keeps_records(device: torch.device) -> bool:
    """Returns True if records are better kept on this device than fetched."""
    return device.type == "cuda"


def bytes_for_records(device: torch.device) -> int:
    """Returns the number of bytes of records that are kept on this device."""
    return free_bytes(device) // SHARE


def free_bytes(device: torch.device) -> int:
    """Returns the free bytes of a CUDA device: unused memory, and what torch holds and does not use; 0 if unknown."""
    if device.type != "cuda":
        return 0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def is_out_of_memory(error: Exception) -> bool:
    """Returns True if a device had no memory left; libraries below torch report it in their own words."""
    words = ("out of memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def batch_size_bound(expected: float) -> float:
    """Returns a size that few batches exceed, where this many records are expected."""
    return expected + SPREAD * math.sqrt(expected)


def size_for(expected: float, max_records: int) -> int:
    """Returns the number of records in a part, where at most `max_records` go through the model at once.

    Batches of Poisson sampling are about as large as expected. Nearly all of them go in equal parts; only the last part
    is
    padded.
    """
    parts = math.ceil(batch_size_bound(expected) / max_records)
    return min(max_records, STEP * math.ceil(batch_size_bound(expected) / parts / STEP))


def size_on(device: torch.device, expected: float, max_records: int) -> int:
    """Returns `size_for`, where parts have one size; else `max_records`."""
    return size_for(expected, max_records) if one_size(device) else max_records
