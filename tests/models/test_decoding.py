"""Tokens one after another, from decoders whose probabilities are known."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from dprecipe.faults import DataFault, UsageFault  # noqa: E402
from dprecipe.models.decoding import Sampling, choose_tokens, continue_tokens  # noqa: E402

END = 3
SHARES = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def constant(tokens: Tensor, cache: Any) -> tuple[Tensor, int]:
    """Each token has the same share, whatever came before; the cache counts."""
    return SHARES.expand(len(tokens), -1), (cache or 0) + tokens.shape[1]


def counting(tokens: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
    """The token that follows is the last one plus one."""
    logits = torch.full((len(tokens), 6), -20.0)
    return logits.scatter(1, (tokens[:, -1:] + 1) % 6, 20.0), tokens


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_goes_on_to_the_end_token_and_leaves_it_out() -> None:
    (first, second) = continue_tokens(counting, [0], 2, Sampling(9, temperature=0), generator(), end=END)
    assert first == second
    assert (first.tokens, first.has_ended) == ((1, 2), True)
    (cut,) = continue_tokens(counting, [0], 1, Sampling(2, temperature=0), generator(), end=END)
    assert (cut.tokens, cut.has_ended) == ((1, 2), False)


def test_a_seed_gives_the_same_tokens_and_another_gives_others() -> None:
    results = [continue_tokens(constant, [0], 3, Sampling(40), generator(seed)) for seed in (1, 1, 2)]
    assert results[0] == results[1] != results[2]


def test_tokens_are_drawn_by_their_share() -> None:
    """A binomial count of 40,000 draws is 6 standard deviations off with a probability below 1e-8 for each token."""
    drawn = choose_tokens(SHARES.expand(40_000, -1), Sampling(1), generator())
    counts = torch.bincount(drawn, minlength=4).double()
    shares = SHARES.double().exp()
    assert bool(((counts - 40_000 * shares).abs() <= 6 * (40_000 * shares * (1 - shares)).sqrt()).all())


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    def seen(top_p: float) -> set[int]:
        return set(choose_tokens(SHARES.expand(4_000, -1), Sampling(1, top_p=top_p), generator()).tolist())

    assert seen(0.4) == {0}
    assert seen(0.6) == {0, 1}
    assert seen(0.81) == {0, 1, 2}  # the missing of one that has a share of 0.05 has a probability below 1e-89
    assert seen(1.0) == {0, 1, 2, 3}


def test_a_banned_token_is_never_drawn_but_the_end_may_be() -> None:
    rows = continue_tokens(constant, [0], 200, Sampling(20), generator(), end=0, banned=[0, 1])
    assert {token for row in rows for token in row.tokens} == {2, 3}
    assert all(row.has_ended for row in rows)  # one does not with a probability below 1e-8


@pytest.mark.parametrize(
    "numbers",
    [
        {"max_tokens": 0},
        {"max_tokens": 1, "temperature": -1.0},
        {"max_tokens": 1, "temperature": math.nan},
        {"max_tokens": 1, "top_p": 0.0},
        {"max_tokens": 1, "top_p": math.nan},
    ],
)
def test_numbers_out_of_range_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(UsageFault):
        Sampling(**numbers)


def test_a_prompt_without_tokens_and_a_diverged_model_are_refused() -> None:
    with pytest.raises(UsageFault, match="no token"):
        continue_tokens(constant, [], 1, Sampling(1), generator())
    for broken in (math.nan, math.inf):
        with pytest.raises(DataFault, match="not finite"):
            choose_tokens(torch.tensor([[0.0, broken]]), Sampling(1), generator())
    with pytest.raises(DataFault, match="not finite"):
        continue_tokens(constant, [0], 1, Sampling(1), generator(), banned=range(4))
