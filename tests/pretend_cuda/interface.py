"""What `torch.cuda` has, for pretended devices: its functions and classes, each by its own name."""

from __future__ import annotations

import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from tests.pretend_cuda import guard
from tests.pretend_cuda.counting import wait
from tests.pretend_cuda.state import STATE, index_of

CAPABILITY = (7, 5)
"""The newest without TF32, which is not pretended."""
SYNC_MODES = {"default": 0, "warn": 1, "error": 2}

# ------------------------------------------------------------------------------------------------------------ classes


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """So that `isinstance(…, torch.Generator)` holds of generators that C++ made."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


_of_devices: weakref.WeakValueDictionary[int, Generator] = weakref.WeakValueDictionary()
"""C++ hands out another object for the same generator; its address is the same."""


def address_of(generator: Any) -> int:
    return int(generator._cdata)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """A generator that may be a device's; its numbers are a CPU's."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> Generator:
        made: Generator = super().__new__(cls)
        made._device = torch.device(device)
        if made._device.type == "cuda":
            made._device = STATE.devices[index_of(made._device)].name
            _of_devices[address_of(made)] = made
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    @staticmethod
    def is_of_device(generator: Any) -> bool:
        """Return True for a generator of any device."""
        return address_of(generator) in _of_devices


class Stream:
    """A stream, in which everything is done already."""

    cuda_stream = 0

    def __init__(self, device: object = None, priority: int = 0, **given: object) -> None:
        self.device_index = index_of(device)
        self.device = STATE.devices[self.device_index].name

    def synchronize(self) -> None:
        wait("stream.synchronize")

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Event:
    """A moment, at which all that was asked for before it is done."""

    def __init__(self, enable_timing: bool = False, **given: object) -> None:
        self._moment = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._moment = time.perf_counter()

    def synchronize(self) -> None:
        wait("event.synchronize")

    def wait(self, stream: Stream | None = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return 1e3 * (later._moment - self._moment)


# ------------------------------------------------------------------------------------------------------------ devices


def _lazy_init() -> None: ...


def init() -> None: ...


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return len(STATE.devices)


def current_device() -> int:
    return guard.get_current()


def set_device(device: object) -> None:
    guard.set_current(index_of(device))


def _exchange_device(index: int) -> int:
    return guard.set_current(index)


def _maybe_exchange_device(index: int) -> int:
    return guard.set_current(index)


def synchronize(device: object = None) -> None:
    wait("synchronize")


def get_device_properties(device: object = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="Pretended CUDA device",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=STATE.devices[index_of(device)].total,
        multi_processor_count=72,
        warp_size=32,
        max_threads_per_multi_processor=1024,
        L2_cache_size=6 << 20,
        uuid=f"pretended-{index_of(device)}",
    )


def get_device_name(device: object = None) -> str:
    return str(get_device_properties(device).name)


def get_device_capability(device: object = None) -> tuple[int, int]:
    return CAPABILITY


def get_arch_list() -> list[str]:
    return ["sm_75"]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return including_emulation


def is_tf32_supported() -> bool:
    return False


def set_sync_debug_mode(mode: int | str) -> None:
    STATE.waits = SYNC_MODES[mode] if isinstance(mode, str) else mode


def get_sync_debug_mode() -> int:
    return STATE.waits


# ------------------------------------------------------------------------------------------------------------- memory


def mem_get_info(device: object = None) -> tuple[int, int]:
    there = STATE.devices[index_of(device)]
    return max(0, there.limit - there.reserved), there.total


def memory_allocated(device: object = None) -> int:
    return STATE.devices[index_of(device)].now


def max_memory_allocated(device: object = None) -> int:
    return STATE.devices[index_of(device)].peak


def memory_reserved(device: object = None) -> int:
    return STATE.devices[index_of(device)].reserved


def max_memory_reserved(device: object = None) -> int:
    return STATE.devices[index_of(device)].reserved


def reset_peak_memory_stats(device: object = None) -> None:
    there = STATE.devices[index_of(device)]
    there.peak = there.now


def empty_cache() -> None:
    for there in STATE.devices:
        there.reserved = there.now


def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
    STATE.devices[index_of(device)].fraction = fraction


# ------------------------------------------------------------------------------------------------- streams, generators


def range_push(msg: str) -> int:
    return 0


def range_pop() -> int:
    return 0


def current_stream(device: object = None) -> Stream:
    return Stream(device)


def default_stream(device: object = None) -> Stream:
    return Stream(device)


def set_stream(stream: Stream) -> None: ...


def stream(stream: Stream | None) -> nullcontext[None]:
    return nullcontext()


def is_current_stream_capturing() -> bool:
    return False


def _own(device: object = None) -> Generator:
    own: Generator = torch.cuda.default_generators[index_of(device)]  # type: ignore[assignment]
    return own


def manual_seed(seed: int) -> None:
    _own().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _own(index).manual_seed(int(seed))


def seed() -> None:
    _own().seed()


def seed_all() -> None:
    manual_seed_all(_own(0).seed())


def initial_seed() -> int:
    return _own().initial_seed()


def get_rng_state(device: object = "cuda") -> torch.Tensor:
    return _own(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: object = "cuda") -> None:
    if not new_state.is_cpu:
        raise TypeError("expected a ByteTensor on the CPU")
    _own(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
