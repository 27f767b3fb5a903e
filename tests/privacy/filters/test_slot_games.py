"""Games with slots beside a filter, enumerated exactly: who chooses by outcomes attains no more than both parts of the
cap."""

import itertools
import math

import pytest

from tests.privacy.filters.test_games import NOTHING, RefundGame, hockey_stick

LEVELS = (0.1, 0.3, 0.8)


class SlotGame(RefundGame):
    """Three slots, fixed before the game. By what was seen, the adversary reserves, goes on, gives back, or takes a
    slot: itself, or a mechanism that it dominates, its outcomes put through random noise."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self.slots = []
        for _ in range(3):
            size = rng.choice([2, 3])
            shape = [rng.gauss(0, 1) for _ in range(2 * size)]
            p, q = self.mechanism(rng.random(), shape, 0.02 if rng.random() < 0.2 else 0.0)
            self.slots.append((p, q))
        self.slots_epsilon = rng.choice(LEVELS)
        product = [
            (math.prod(a for a, _ in path), math.prod(b for _, b in path))
            for path in itertools.product(*(tuple(zip(*slot, strict=True)) for slot in self.slots))
        ]
        self.slots_delta = hockey_stick(product, self.slots_epsilon)

    def play(self, runs: int) -> float:
        """The δ that this game attains at the ε of both parts together."""
        self._turn(runs, 1.0, 1.0, NOTHING, (), (0, 1, 2))
        return hockey_stick(self.leaves, self.cap.epsilon + self.slots_epsilon)

    def _turn(self, runs, p, q, drawn, open_steps, left):
        """A slot, if the adversary likes; then a move of the filter's game, after which it is asked again."""
        if left and p and q and self.rng.random() < 0.6:
            taken = self.rng.choice(left)
            first, second = self.slots[taken]
            if self.rng.random() < 0.3:
                first, second = self.post_process(first, second)
            rest = tuple(slot for slot in left if slot != taken)
            for a, b in zip(first, second, strict=True):
                if a or b:
                    self._turn(runs, p * a, q * b, drawn, open_steps, rest)
            return
        self.left = left
        self._step(runs, p, q, drawn, open_steps)

    def _draw(self, step, runs, p, q, drawn, rest):
        left = self.left
        for a, b in zip(*step[0], strict=True):
            if a or b:
                self._turn(runs, p * a, q * b, drawn + step[1], rest, left)

    def post_process(self, first, second):
        rows = [[self.rng.random() for _ in range(2)] for _ in first]
        kernel = [[x / sum(row) for x in row] for row in rows]
        return tuple(
            tuple(math.fsum(m * row[k] for m, row in zip(side, kernel, strict=True)) for k in range(2))
            for side in (first, second)
        )


def play_slots(seeds: range, runs: int) -> float:
    """The largest share of its claim that any game attained, with so many runs under the filter."""
    largest = 0.0
    for seed in seeds:
        game = SlotGame(seed)
        attained = game.play(runs)
        assert math.fsum(p for p, _ in game.leaves) == pytest.approx(1, abs=1e-12)
        assert math.fsum(q for _, q in game.leaves) == pytest.approx(1, abs=1e-12)
        claim = (game.cap.delta if game.leaks else game.cap.delta_rest) + game.slots_delta
        assert attained <= claim * (1 + 1e-12)
        largest = max(largest, attained / claim)
    return largest


def test_slots_beside_a_filter_attain_no_more_than_both_parts():
    assert play_slots(range(10), runs=1) > 0.1


@pytest.mark.slow
def test_slots_beside_a_filter_in_a_thousand_games():
    assert play_slots(range(100, 1_100), runs=1) > 0.5
