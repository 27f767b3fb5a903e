"""The tests that take a GPU, on the pretended device: what they hold of devices, waits and memory is held in CI."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.needs_time import needs_time
from tests.pretend_cuda.child import needs_device, run_tests
from tests.pretend_cuda.roads import ROOT

ENGINE, LANGUAGE, NOISE, ROOMS, RUNS = (
    f"tests/gpu/test_{name}.py" for name in ("engine", "language", "noise", "rooms", "runs")
)
LEFT_OUT = {
    f"{ENGINE}::test_14_compiled_is_eager": "compiled passes take triton",
    f"{ENGINE}::test_20_no_copy_of_all_numbers_crosses_the_bus": "the profiler knows no such device; runs.py counts it",
    f"{ENGINE}::test_27_the_way_taken_is_the_fastest": "it measures how fast a device is",
    f"{NOISE}::test_01_the_compiled_keystream_is_openssl_s": "compiled passes take triton",
    f"{NOISE}::test_05_copied_noise_waits_for_nobody_and_is_not_overwritten": "nothing overlaps: none is overwritten",
}
"""Tests that need a GPU, and why."""
RECOMPUTED = f"{LANGUAGE}::test_28_recomputed_blocks_have_the_same_sums"
HALF = f"{LANGUAGE}::test_28_bfloat16_is_near_and_raises_no_warning"
ADAPTERS = f"{LANGUAGE}::test_28_a_run_of_adapters_is_published_and_writes_on_the_device"
CODES = f"{ROOMS}::test_21_codes_are_those_of_the_cpu_and_of_each_gradient_alone"
WAITING = f"{ROOMS}::test_21_an_encoder_waits_for_nobody"
PRESETS = f"{ENGINE}::test_25_presets_pass_the_probe"
TOO_LONG = {
    f"{ENGINE}::test_25_a_wide_resnet_passes_the_probe": (
        "tests/pretend_cuda/cases/long_models.py::test_a_wide_residual_network_of_augmented_records"
    ),
    f"{PRESETS}[tempered-cifar-shape1]": f"{PRESETS}[tempered-mnist-shape0]",
    f"{ENGINE}::test_18_memory_is_level_over_poisson_batches": f"{LANGUAGE}::test_28_memory_is_freed_after_each_sum",
    **{f"{RECOMPUTED}[{family}-True]": f"{RECOMPUTED}[{family}-False]" for family in ("gpt2", "llama", "qwen3")},
    **{f"{HALF}[{family}-True]": f"{HALF}[{family}-False]" for family in ("gpt2", "llama", "qwen3")},
    f"{ADAPTERS}[, precision: bf16]": f"{HALF}[llama-False]",
    f"{ADAPTERS}[, recompute: true]": f"{RECOMPUTED}[llama-False]",
    f"{CODES}[300]": f"{CODES}[20000]",
    f"{WAITING}[300]": f"{WAITING}[20000]",
}
"""Tests that take a CPU long, and of each another that holds the same of the device."""
QUICK = [
    *(f"{ENGINE}::test_07_the_sum_is_that_of_single_records[{name}]" for name in ("series-l1", "perceptron-l2")),
    f"{ENGINE}::test_08_",
    f"{ENGINE}::test_10_",
    f"{ENGINE}::test_11_",
    f"{ENGINE}::test_12_",
    f"{ENGINE}::test_13_",
    f"{ENGINE}::test_19_",
    f"{ENGINE}::test_25_gradients_",
    f"{ENGINE}::test_25_the_probe_",
    f"{ENGINE}::test_29_",
    f"{NOISE}::test_01_",
    f"{NOISE}::test_05_noise_of_few_",
    f"{NOISE}::test_06_single_",
    f"{NOISE}::test_06_the_",
    f"{ROOMS}::test_21_a_noisy_",
    f"{ROOMS}::test_23_",
    f"{RUNS}::test_16_a_run_is_stopped_and_goes_on[cpu]",
    f"{RUNS}::test_17_",
]
"""What begins so takes a second or less, and is tried each time; the others are long tests."""


def drop(tests: Iterable[str]) -> list[str]:
    return [f"--deselect={test}" for test in tests]


@pytest.mark.slow
@needs_device
def test_what_a_cpu_does_quickly(tmp_path: Path) -> None:
    files = (ENGINE, NOISE, ROOMS, RUNS)  # the import of the other's libraries takes seconds
    begins = [f"--begins={test}" for test in QUICK]
    passed = run_tests(tmp_path, "-p", "tests.pretend_cuda.selection", *begins, *drop(LEFT_OUT), *files, least=73)
    assert [prefix for prefix in QUICK if not any(test.startswith(prefix) for test in passed)] == []


@needs_device
@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "least"),
    [
        pytest.param((ENGINE,), 19, marks=needs_time),
        pytest.param((LANGUAGE,), 20, marks=needs_time),
        pytest.param((NOISE, ROOMS, RUNS), 53, marks=needs_time),
    ],
    ids=["engine", "language", "rest"],
)
def test_all_others(files: tuple[str, ...], least: int, tmp_path: Path) -> None:
    run_tests(tmp_path, *drop([*LEFT_OUT, *TOO_LONG, *QUICK]), *files, least=least)


def test_what_is_named_exists() -> None:
    """A test that has another name by now would run where it can't pass, or not at all."""
    for test in [*LEFT_OUT, *TOO_LONG, *TOO_LONG.values(), *QUICK]:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name.partition('[')[0]}", text, re.MULTILINE), test
