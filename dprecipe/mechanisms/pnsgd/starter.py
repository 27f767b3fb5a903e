"""The starter recipes of projected noisy SGD: what follows the name, for each source."""

from __future__ import annotations

_CLIP = "    - clip_features: {norm: 1.0}    # shrink each record to at most this length: the proofs need a bound\n"
_PREPROCESS = "  preprocess:\n"

_CHOICES = {
    # model, radius, η, records of a step, passes, ε
    "digits": ("{kind: softmax_regression, bias: false}", "20.0", "1.0", 144, 40, "4.0"),
    "idx": ("{kind: softmax_regression, bias: false}", "20.0", "1.0", 512, 10, "3.0"),
    "csv": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, "3.0"),
    "parquet": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, "3.0"),
    "npz": ("{kind: logistic_regression}", "10.0", "2.0", 100, 10, "3.0"),
}


def starter_text(source: str, data: str) -> str:
    """All of a recipe but its name; to `data`, the source's block, it adds a bound on the features."""
    data = data.replace(
        "# or {column: user_id, max_records: 8}: all records of a user", "# who is protected: one record"
    )
    if "clip_features" not in data:
        data += _CLIP if _PREPROCESS in data else _PREPROCESS + _CLIP
    model, radius, rate, batch, passes, epsilon = _CHOICES[source]
    return f"""\
{data}
model: {model}    # convex: what is proved of hiding iterates holds for no network

mechanism:
  kind: pnsgd                # plain noisy steps, projected on a ball; nobody sees an iterate but the last
  constraint: {{kind: ball, radius: {radius}}}       # all weights together stay within this length
  learning_rate: {rate:<12}# how far a step goes; at most 2 over the smoothness that `dprecipe plan` shows
  noise: {{family: gaussian, multiplier: auto}}    # auto: solved, so that the run just fits the budget
  batch_size: {batch:<15}# records of one step
  order: permuted            # drawn once, for all passes; or sequential: a guarantee for each position

# The most that may be spent; delta far below 1 / data.size. Exchanging a record leaves all others in their places.
budget: {{epsilon: {epsilon}, delta: 1e-6, neighbouring: replace_one}}

training:
  epochs: {passes:<19}# passes over the data; or `steps`

runtime: {{device: auto, seed: 0}}       # nothing here can change what is spent
release: {{report: true}}
"""
