"""Extremes of ε, δ, sampling rate, length and size: a plan in seconds and little memory, or a finding."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dprecipe.faults import PlanRefused
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text

RECIPE = """recipe: dprecipe/v1
name: extreme
data: {{train: {{source: npz, path: x.npz, features: x, labels: y, shape: [4], classes: 2}}, size: {size}}}
model: {{kind: logistic_regression}}
mechanism:
  kind: dpsgd
  clip: {clip}
  noise: {noise}
  sampling: {{scheme: poisson, batch_size: {batch}}}
budget: {{epsilon: {epsilon}, delta: {delta}}}
training: {{{length}, optimizer: {{kind: sgd, lr: 0.5}}}}
"""
GIBIBYTE = 1 << 30


def write(
    size: int = 1438,
    batch: int = 64,
    noise: str = "{family: gaussian, multiplier: auto}",
    epsilon: object = 1.0,
    delta: float = 1e-5,
    length: str = "epochs: 10",
    clip: str = "{norm: 1.0}",
) -> str:
    return RECIPE.format(size=size, batch=batch, noise=noise, epsilon=epsilon, delta=delta, length=length, clip=clip)


LAYERS = {"clip": "{mode: per_layer, norms: [1.0], noise: [2.0]}"}
PHASES = {"noise": "[{family: gaussian, multiplier: 1.0e+5, steps: 50}, {family: gaussian, multiplier: auto}]"}
LENGTH = {"noise": "{family: gaussian, multiplier: 2.0e+4}", "length": "epochs: auto"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "change"),
    [
        *((epsilon, change) for epsilon in (0.01, 0.001, 1e-4) for change in ({}, LAYERS, PHASES)),
        *((epsilon, LENGTH) for epsilon in (0.001, 1e-4)),  # 0.01 are 3.4 million steps: half a minute
    ],
)
def test_tiny_budgets_are_solved(epsilon: float, change: dict[str, str]) -> None:
    """Another library took 75 GB and 45 minutes at ε = 0.01."""
    planned = plan(read_text(write(epsilon=epsilon, **change), "x.yaml"))
    assert 0.999 * epsilon <= planned.guarantee.epsilon <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code"),
    [
        (write(epsilon=1e-4, noise="{family: gaussian, multiplier: 8.0}", length="epochs: auto"), "P106"),
        (write(10**9, 1, "{family: gaussian, multiplier: 1.0}", 1e-2, 1e-12, "epochs: auto"), "P107"),
        (write(10**9, 1, "{family: gaussian, multiplier: 1.0e+4}", 1e-6, 1e-12, "epochs: auto"), "P107"),
        (write(1000, 1, epsilon=50, delta=1e-12, length="steps: 1"), "P107"),
        (write(1000, 1, epsilon=1e-6, delta=1e-12, length="steps: 10000000"), "P106"),
        (write(10**5, 105, "{family: gaussian, multiplier: 1.0}", "auto", 1e-3, "steps: 1"), "P103"),
    ],
)
def test_what_has_no_plan_has_a_finding(text: str, code: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        plan(read_text(text, "x.yaml"))
    assert code in [finding.code for finding in caught.value.findings]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        write(10**9, 1, epsilon=1e-2, delta=1e-12, length="steps: 10000"),  # the widest windows of δ(ε)
        write(1000, 1, epsilon=50, delta=1e-12, length="steps: 10000000"),
        write(10**6, 999_999, "{family: gaussian, multiplier: 1.0e+4}", 1.0, 1e-12, "epochs: auto"),
    ],
)
def test_extremes_take_less_than_a_gibibyte(text: str) -> None:
    code = (
        "import re, sys\nfrom pathlib import Path\nfrom dprecipe.planning.make import plan\n"
        "from dprecipe.recipe.read import read_text\nplan(read_text(sys.argv[1], 'x.yaml'))\n"
        "print(int(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1]) << 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=True)
    assert int(done.stdout) < GIBIBYTE
