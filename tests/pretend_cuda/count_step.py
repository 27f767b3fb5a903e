"""Counts a private step of a model on a device of shapes alone: `python -m tests.pretend_cuda.count_step CASE WAY`.

Cases are those of benchmarks/gpu_cases.py, at their full size, and a decoder of 100 million parameters on one part of a
batch. Strategies are chosen by the estimated time of an H100 in place of a clock's. Prints JSON.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from typing import Any
from unittest import mock

from tests.pretend_cuda.roads import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu
import gpu_cases
import torch

from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.zoo.causal_lm import causal_model
from dprecipe.training.engine import planning, shares
from tests.pretend_cuda.counting import Recording, recording

LLAMA_100M = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048,
    "num_hidden_layers": 11, "num_attention_heads": 12, "num_key_value_heads": 12,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
CASES = {
    **gpu_cases.CASES,
    "decoder 100M": gpu_cases.Case(
        lambda: causal_model(check_decoder_config(LLAMA_100M), 512), (2, 512), 9, 16, 32_000, writes=True
    ),
    "decoder 100M, LoRA": gpu_cases.Case(gpu_cases.decoder(LLAMA_100M, 512), (2, 512), 9, 16, 32_000, writes=True),
}


def count_step(name: str, way: str) -> dict[str, Any]:
    """Count the second step: plans are made in the first."""
    with mock.patch.object(gpu, "named", return_value=nullcontext()):  # names of parts go to a profiler
        with recording() as clock:
            read_clock = mock.Mock(side_effect=lambda device: clock.seconds)
            with (
                mock.patch.object(shares, "read_clock", read_clock),
                mock.patch.object(planning, "read_clock", read_clock),
                mock.patch.object(planning, "check_plan"),  # it compares values
            ):
                step = gpu.step_of(CASES[name], way, torch.device("cuda", 0), 3)
                step(0)
        torch.cuda.reset_peak_memory_stats()
        with recording() as seen:
            step(1)
    return describe(seen)


def describe(seen: Recording) -> dict[str, Any]:
    """Name what a test compares; lines of the program without their numbers, which move."""
    return {
        "kernels": seen.launches,
        "waits": {re.sub(r":[0-9]+ ", " ", line): number for (_, line), number in sorted(seen.waits.items())},
        "bytes to the device": seen.to_device.total(),
        "bytes to the host": seen.to_host.total(),
        "peak MiB": torch.cuda.max_memory_allocated() >> 20,
        "estimated ms": round(1000 * seen.seconds, 1),
    }


if __name__ == "__main__":
    print(json.dumps(count_step(*sys.argv[1:])))
