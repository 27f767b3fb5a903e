"""Starter recipes of gradient encoding: everything but the name, for each source."""

from __future__ import annotations

from dprecipe.contract.starter import Task

# More than a thousand parameters: with fewer, the step multiplier is mostly noise.
_MODEL = {
    "digits": "{kind: mlp, hidden: [32], activation: tanh}",
    "idx": "{kind: cnn, preset: tempered-mnist}",
    "csv": "{kind: mlp, hidden: [32, 32], activation: tanh}",
    "parquet": "{kind: mlp, hidden: [32, 32], activation: tanh}",
    "json_lines": "{kind: mlp, hidden: [32, 32], activation: tanh}",
    "npz": "{kind: mlp, hidden: [32, 32], activation: tanh}",
}

_REST = """\

mechanism:
  kind: encoded              # clip each unit's gradient rank by rank, add noise to the sum, denoise, step
  # The shape a gradient is expected to have: sorted normal magnitudes, drawn from a public seed, so no secret.
  codebook: {{source: gaussian, size: 1000, norm: 1.0, seed: 0}}   # norm: the most one unit can move the sum
  # Or laplace, student_t with a df, variance_gamma with a shape, sech. With more than a hundred parameters none is
  # noticeably better than gaussian: `dprecipe noise` compares them for this recipe.
  noise: {{family: gaussian, multiplier: auto}}    # auto: solved, so that the run just fits the budget
  denoise: kolmogorov_smirnov                    # steps are scaled by how far the noisy sum stands out; or `none`
  sampling: {{scheme: poisson, batch_size: {batch_size}}}   # units of one step, on average

budget: {{epsilon: {epsilon}, delta: {delta}}}    # the most that may be spent; delta far below 1 / data.size

training:
  epochs: 20                 # passes over the data; or `steps`
  optimizer: {{kind: sgd, lr: 10.0, momentum: 0.9}}    # denoising makes steps small, so lr is large{weights}

runtime: {{device: auto, seed: 0}}       # nothing here can change what is spent
{release}
"""


def starter_text(source: str, data: str, task: Task) -> str:
    """Returns a recipe without its name; `data` is the source's block."""
    rest = _REST.format(
        batch_size=task.choose_batch_size(256),
        epsilon=task.choose_epsilon(3.0),
        delta=task.delta,
        release=task.release,
        weights=task.weights,
    )
    return f"{data}\nmodel: {_MODEL[source]}\n{rest}"
