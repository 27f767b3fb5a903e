"""How fast votes become answers: 100,000 queries, 150 classes, 5,000 teachers.

Counting labels, putting every query by each aggregator with ledger and answers on disk, and the exact worst-case ε of
what it charged; then the data-dependent analysis of 10,000 of the queries. `numpy` is the bare aggregator: noise of
numpy's generator, which is not secure, on all counts, and the largest; without ledger and answers.

Run: python benchmarks/pate.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from figures import parser_of, ratio, seconds_of, write_json

from dprecipe.mechanisms.pate.aggregators import aggregator_of
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.vote_analysis import analyse_votes
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.mechanisms.pate.train.answers import AnswersFile
from dprecipe.mechanisms.pate.train.ballot import Ballot, RemainingBudget, noise_streams
from dprecipe.mechanisms.pate.votes_file import count_labels
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read

QUERIES, CLASSES, TEACHERS, ANALYSED = 100_000, 150, 5_000, 10_000
RECIPE = f"""\
recipe: dprecipe/v1
name: glyph-sized
data:
  train: {{source: npz, path: train.npz, shape: [4], classes: {CLASSES}}}
  public: {{source: npz, path: public.npz, shape: [4]}}
  size: 1000000
model: {{kind: logistic_regression}}
mechanism:
  kind: pate
  teachers: {{count: {TEACHERS}, votes: {{path: votes.npz}}}}
  aggregator: %s
  queries: {{max: {QUERIES}}}
budget: {{epsilon: auto, delta: 1e-8}}
"""
SELECTION = "selection: {threshold: 1000, noise: {family: gaussian, multiplier: 500}}"
AGGREGATORS = {
    "LNMax": "{kind: lnmax, noise: {family: laplace, multiplier: 400}}",
    "GNMax": "{kind: gnmax, noise: {family: gaussian, multiplier: 400}}",
    "Confident-GNMax": f"{{kind: confident_gnmax, noise: {{family: gaussian, multiplier: 400}}, {SELECTION}}}",
    "Interactive-GNMax": f"{{kind: interactive_gnmax, noise: {{family: gaussian, multiplier: 400}}, {SELECTION}}}",
}


def timed(what: str, work: Callable[[], object]) -> float:
    """Seconds of the processor; those of the clock are shown."""
    start = time.perf_counter()
    seconds = seconds_of(work)
    print(f"{what:62} {time.perf_counter() - start:7.2f} s", flush=True)
    return seconds


def main() -> None:
    given = parser_of(__doc__).parse_args()
    rounds = given.rounds or (3 if given.json else 1)
    times: dict[str, list[float]] = {}
    generator = np.random.default_rng(0)
    labels = generator.integers(CLASSES, size=(1000, TEACHERS), dtype=np.uint16)
    timed(
        f"counting the labels of {TEACHERS:,} teachers on {len(labels):,} queries",
        lambda: count_labels(labels, CLASSES),
    )
    law = generator.dirichlet(np.full(CLASSES, 0.05), size=100)
    counts = np.concatenate([generator.multinomial(TEACHERS, row, size=QUERIES // len(law)) for row in law])
    counts = counts.astype(np.int32)
    expected = np.full((QUERIES, CLASSES), 1 / CLASSES)

    def bare() -> None:
        largest = (counts + generator.normal(0, 400, size=counts.shape)).argmax(1)
        assert len(largest) == QUERIES

    for name, aggregator in list(AGGREGATORS.items()) * rounds:
        with tempfile.TemporaryDirectory() as folder:
            recipe = Path(folder) / "recipe.yaml"
            recipe.write_text(RECIPE % aggregator, encoding="utf-8")
            plan = make_plan(read(recipe))
            ledger = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest)
            remaining_budget = RemainingBudget(plan, ledger)
            answers = AnswersFile(Path(folder) / "answers.jsonl", None, QUERIES, CLASSES)
            chosen = aggregator_of(plan.as_plan_of(PatePlan))
            ballot = Ballot(counts, chosen, QUERIES, remaining_budget, noise_streams(Secrets()), answers)
            scores = expected if name.startswith("Interactive") else None

            def put(ballot: Ballot = ballot, scores: object = scores) -> None:
                ballot.put(range(QUERIES), scores)  # type: ignore[arg-type]

            seconds = timed(f"{name}: {QUERIES:,} queries put, {CLASSES} classes", put)
            times.setdefault(name, []).append(seconds)
            times.setdefault(f"{name} in numpy", []).append(timed("  numpy", bare))
            terms = (plan.budget.delta, plan.budget.neighbouring, plan.budget.accountant)
            timed(
                f"  worst-case ε of {ballot.answered:,} answers",
                lambda budget=remaining_budget, terms=terms: accountants.epsilon(budget.charged, *terms),
            )
            ledger.abandon()
    ratios = {f"{name}: votes put / numpy": ratio(times[name], times[f"{name} in numpy"]) for name in AGGREGATORS}
    write_json(given.json, "pate", ratios, quick=given.quick)
    if given.quick:
        return
    timed(
        f"data-dependent analysis of {ANALYSED:,} queries (Theorem 6)",
        lambda: analyse_votes(counts[:ANALYSED], voting_of(plan), 1e-8, exact=False),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform != "darwin" else 1 << 30)
    print(f"peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
