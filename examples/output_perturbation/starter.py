"""The starter recipes: what follows the name, for each source."""

from __future__ import annotations

from dprecipe.contract.starter import Task


def starter_text(source: str, data: str, task: Task) -> str:
    """All of a recipe but its name; to `data`, the source's block, it adds a bound on the features."""
    data = data.replace("# or {column: user_id, max_records: 8}: all records of a user", "# who is protected")
    if "clip_features" not in data:
        data += ("" if "preprocess:" in data else "  preprocess:\n") + "    - clip_features: {norm: 1.0}\n"
    return f"""\
{data}
model: {{kind: softmax_regression, bias: false, l2: 0.05}}    # l2: the more, the less one record moves the minimum
mechanism: {{kind: output_perturbation, noise_multiplier: auto}}    # solved, so that the release just fits the budget
budget: {{epsilon: 4.0, delta: {task.delta}, neighbouring: replace_one}}
"""
