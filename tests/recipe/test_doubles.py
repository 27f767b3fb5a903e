"""Keys that were meant for one place: all remedies can be followed, and the strictest value stays."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.text.load import parse
from dprecipe.text.tree import to_plain

from .follow import findings_of, follow, written
from .test_elsewhere import VISITS


def insert(*lines: str) -> str:
    return VISITS.replace("name: visits\n", "".join(f"{line}\n" for line in ("name: visits", *lines)))


NO_BUDGET = "budget: {epsilon: 3.0, delta: 1e-6}\n"
CASES = {
    "the first is stricter": (
        ("epsilon_budget: 2.0", "max_epsilon: 4.0"),
        ("set budget.epsilon to 2.0", "remove it: `epsilon_budget` is 2.0, the stricter of the two"),
    ),
    "the last is stricter": (
        ("epsilon_budget: 4.0", "max_epsilon: 2.0"),
        ("remove it: `max_epsilon` is 2.0, the stricter of the two", "set budget.epsilon to 2.0"),
    ),
    "the same": (
        ("epsilon_budget: 2.0", "max_epsilon: 2.0"),
        ("set budget.epsilon to 2.0", "remove it: `epsilon_budget` says the same"),
    ),
    "three": (
        ("epsilon_budget: 4.0", "max_epsilon: 2.0", "target_epsilon: 3.0"),
        (
            "remove it: `max_epsilon` is 2.0, the stricter of the two",
            "set budget.epsilon to 2.0",
            "remove it: `max_epsilon` is 2.0, the stricter of the two",
        ),
    ),
    "no number": (
        ("epsilon_budget: 4.0", "max_epsilon: [2.0]"),
        ("keep the one that protects more, as budget.epsilon, and remove the other",) * 2,
    ),
    "in blocks of others": (
        ("privacy: {target_epsilon: 4.0}", "dp: {max_epsilon: 2.0}"),
        ("remove it: `max_epsilon` is 2.0, the stricter of the two", "set budget.epsilon to 2.0"),
    ),
    "one name in two places": (
        ("dp: {target_epsilon: 2.0}", "target_epsilon: 2.0"),
        ("set budget.epsilon to 2.0", "remove it: `dp.target_epsilon` says the same"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_of_two_keys_keeps_its_remedy(case: str) -> None:
    lines, remedies = CASES[case]
    text = insert(*lines).replace(NO_BUDGET, "budget: {delta: 1e-6}\n")
    found = [finding for finding in findings_of(text) if finding.code in ("R101", "R112")]
    assert tuple(finding.remedy for finding in found) == remedies


def test_no_loss_of_a_stricter_value_beside_one_that_is_written() -> None:
    found = findings_of(insert("epsilon_budget: 2.0", "max_epsilon: 1.0"))
    assert [finding.remedy for finding in found] == [
        "remove it: `max_epsilon` is 1.0, the stricter of the two",
        "set budget.epsilon to 1.0, the stricter of the two, and remove it here",
    ]


@pytest.mark.parametrize(
    ("lines", "removed", "expected"),
    [
        (("num_train_epochs: 3", "n_epochs: 5"), "epochs: 10, ", {"epochs": 3}),
        (("max_steps: 100", "num_epochs: 5"), "epochs: 10, ", {"steps": 100}),
        (("learning_rate: 0.1", "lr: 0.2"), ", lr: 2.0", {"lr": 0.1}),
        (("noise_multiplier: 1.0", "sigma: 2.0"), ", multiplier: auto", {"multiplier": 2.0}),
        (("max_grad_norm: 1.0", "l2_norm_clip: 0.5"), "  clip: {norm: 1.0}\n", {"norm": 0.5}),
    ],
)
@pytest.mark.parametrize("are_turned", [False, True])
def test_all_remedies_followed_make_a_recipe(
    lines: tuple[str, ...], removed: str, expected: dict[str, float], are_turned: bool
) -> None:
    """In any order, and from one reading: as a person does who reads all findings and then changes the text."""
    text = insert(*lines)
    assert removed in text
    text = text.replace(removed, "", 1)
    found = [finding for finding in findings_of(text) if finding.code in ("R101", "R112")]
    assert len(found) == 2
    for finding in found[::-1] if are_turned else found:
        text = written(follow(text, finding))
    tree, _ = parse(text, "a.yaml")
    assert tree is not None
    content: Any = to_plain(tree)
    mechanism, training = content["mechanism"], content["training"]
    blocks = [training, training["optimizer"], mechanism["noise"], mechanism.get("clip", {})]
    kept = {key: value for block in blocks for key, value in block.items() if key in ("epochs", "steps", *expected)}
    assert kept == {**({} if "epochs" in removed else {"epochs": 10}), **expected}
    assert not {line.partition(":")[0] for line in lines} & set(content)
