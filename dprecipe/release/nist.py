"""A verified certificate against the topics of NIST SP 800-226, line by line: what answers each, or that nothing does.

Source: NIST SP 800-226, "Guidelines for Evaluating Differential Privacy Guarantees" (March 2025), its pyramid from ε
down to the collection of the data. The questions are in our words; the publication numbers none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from dprecipe.contract.table import mechanism_of
from dprecipe.language.statement import ReleaseStatement, quote_words
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.release import account_report, audit, meaning, scores
from dprecipe.release.card import plain_text
from dprecipe.release.schema import Predicate
from dprecipe.release.verify import Verified

Basis = Literal["recomputed", "recorded", "declared", "not answered"]
EXPLAINED = {
    "recomputed": "`dprecipe verify` derives it again from the certificate",
    "recorded": "the run says so; a signature protects it, nothing recomputes it",
    "declared": "the recipe's author says so; checked by nobody",
    "not answered": "neither the certificate nor the recipe's statement says it; ask the curator",
}


@dataclass(frozen=True, slots=True)
class Line800226:
    """One line of the checklist."""

    part: str
    question: str
    basis: Basis
    answer: str


def render_nist(verified: Verified) -> str:
    """Returns the checklist as Markdown. Texts of the recipe are escaped."""
    predicate = verified.statement.predicate
    lines = list_answers(verified)
    open_lines = sum(line.basis == "not answered" for line in lines)
    text = [
        f"# NIST SP 800-226: {plain_text(predicate.provenance.recipe.name)}",
        "",
        f"{len(lines)} lines, {open_lines} of them not answered. The questions follow the topics of the publication, "
        "in our own words; NIST has approved nothing here.",
        "",
        *(f"- **{basis}**: {what}" for basis, what in EXPLAINED.items()),
    ]
    for part, group in groupby(lines, lambda line: line.part):
        text += ["", f"## {part}", "", "| question | basis | answer |", "|---|---|---|"]
        text += [f"| {line.question} | {line.basis} | {plain_text(line.answer)} |" for line in group]
    return "\n".join(text) + "\n"


def list_answers(verified: Verified) -> list[Line800226]:
    """Returns every line, in the order of the pyramid."""
    predicate = verified.statement.predicate
    return [Line800226(part, question, *answer(predicate)) for part, rows in PARTS.items() for question, answer in rows]


Answer = tuple[Basis, str]
Rule = Callable[[Predicate], Answer]


def _stated(*keys: str) -> Rule:
    """Returns the texts of these keys of the statement, those that there are."""

    def answer(predicate: Predicate) -> Answer:
        stated = predicate.statement or ReleaseStatement()
        texts = [text for text in _texts(stated, keys) if text]
        missing = ", ".join(f"release.statement.{key}" for key in keys)
        return ("declared", "; ".join(texts)) if texts else ("not answered", f"the recipe does not state {missing}")

    return answer


def _texts(stated: ReleaseStatement, keys: tuple[str, ...]) -> Iterator[str]:
    rows = dict(zip((name for name, value in stated if value is not None), stated.list_rows(), strict=True))
    for key in keys:
        if key in rows:
            name, text = rows[key]
            yield quote_words(text) if len(keys) == 1 else f"{name}: {quote_words(text)}"


def _epsilon(predicate: Predicate) -> Answer:
    claim = predicate.claim
    return "recomputed", f"ε = {claim.epsilon!r}. {meaning.describe_attack(claim)} {meaning.describe_scale(claim)}"


def _risk(predicate: Predicate) -> Answer:
    return "recomputed", "; ".join(f"{name}: {text}" for name, text in meaning.list_risk(predicate.claim))


def _delta(predicate: Predicate) -> Answer:
    claim, size = predicate.claim, predicate.sampling.size
    product = "the size of the data set is not declared"
    if size is not None:
        product = f"δ times the declared size of {size:,} is {meaning.read_up(claim.delta * size, 2)}"
    return "recomputed", (
        f"(ε, δ)-DP with δ = {claim.delta!r}, {meaning.describe_delta(claim.delta)}; {product}. "
        f"{len(claim.profile)} more pairs are in the certificate"
    )


def _unit(predicate: Predicate) -> Answer:
    several = "; ".join(f"{name}: {text}" for name, text in meaning.list_group(predicate.claim))
    together = f". At the same δ, {several}" if several else ""
    return "recomputed", meaning.describe_unit(predicate.claim) + together


def _relation(predicate: Predicate) -> Answer:
    claim = predicate.claim
    return "recomputed", f"{claim.neighbouring}: {Neighbouring(claim.neighbouring).words.format(unit=claim.unit.name)}"


def _other_runs(predicate: Predicate) -> Answer:
    return "recorded", account_report.describe_other_runs(predicate.account)


def _composition(predicate: Predicate) -> Answer:
    first, second, third = predicate.accounting
    return "recomputed", (
        f"events: {predicate.events.total:,}, composed by {first.name}: ε = {first.epsilon}; {second.name}: "
        f"{second.epsilon}; {third.name}, an independent library: {third.epsilon}"
    )


def _algorithm(predicate: Predicate) -> Answer:
    part = mechanism_of(predicate.mechanism.kind).certificate
    return "recomputed", f"{predicate.mechanism.kind}, {part.describe_noise(predicate.mechanism)}"


def _checks(predicate: Predicate) -> Answer:
    passed = ", ".join(check.id for check in predicate.checks) or "none: the run ended without a model"
    attacked = audit.summarise_audit(predicate.audit)
    return "recorded", f"tested on the program before it saw a record: {passed}. {attacked[:1].upper()}{attacked[1:]}"


def _assumptions(predicate: Predicate) -> Answer:
    texts = "; ".join(a.text for a in predicate.assumptions if a.checked_by == "declaration")
    return "declared", texts or "nothing is left to a declaration"


def _preprocessing(predicate: Predicate) -> Answer:
    use = predicate.data_access.preprocessing
    return "declared" if use.status == "declared" else "recomputed", use.text


def _tuning(predicate: Predicate) -> Answer:
    use = predicate.data_access.tuning
    return "declared" if use.status == "declared" else "recomputed", use.text


def _utility(predicate: Predicate) -> Answer:
    released = predicate.data_access.evaluation.released
    if released is None:
        return "not answered", f"no score is published; evaluation: {predicate.data_access.evaluation.text}"
    rows = scores.list_rows(released, "loss")
    values = ", ".join(
        f"{row.name} {row.value}" + (f" (without a model {row.baseline})" if row.baseline else "") for row in rows
    )
    return "recorded", f"on {released.records:,} records, {predicate.data_access.evaluation.text}: {values}"


def _bias(predicate: Predicate) -> Answer:
    return "not answered", "scores of groups are not measured; noise and clipping can cost small groups more accuracy"


def _randomness(predicate: Predicate) -> Answer:
    return "recorded", meaning.describe_randomness(predicate.randomness)


def _floats(predicate: Predicate) -> Answer:
    return "recomputed", meaning.FLOATING_POINT[predicate.numerics.floating_point]


def _side_channels(predicate: Predicate) -> Answer:
    return "recomputed", "not covered by the claim: how long the run took, its memory, and every other side channel"


def _unprotected(predicate: Predicate) -> Answer:
    return "recomputed", "; ".join(predicate.claim.not_protected)


def _trust(predicate: Predicate) -> Answer:
    basis, text = _stated("deployment_model", "actors")(predicate)
    central = "the claim trusts whoever ran the program with the raw records"
    return basis, f"{central}; {text}"


def _genuine(predicate: Predicate) -> Answer:
    return "not answered", meaning.NOT_PROVEN


PARTS: dict[str, tuple[tuple[str, Rule], ...]] = {
    "The guarantee": (
        ("How large is ε, and what does it mean?", _epsilon),
        ("What can an attacker find out at most?", _risk),
        ("Which variant of differential privacy, and how large is δ?", _delta),
        ("What is the unit of privacy, and is its contribution bounded?", _unit),
        ("Which data sets are neighbours (bounded or unbounded)?", _relation),
        ("Why these parameters?", _stated("justification")),
        ("Which other releases of the same data are counted?", _other_runs),
        ("Are more releases planned, and how will they be added up?", _stated("releases", "future_releases")),
    ),
    "Algorithms and their utility": (
        ("Which algorithm, with which noise?", _algorithm),
        ("How are its steps composed, and does another accountant agree?", _composition),
        ("On what does the proof rest that nobody checks?", _assumptions),
        ("Is preprocessing covered?", _preprocessing),
        ("Is the choice of hyper-parameters covered?", _tuning),
        ("How accurate is the result?", _utility),
        ("Were systemic, human and statistical bias examined?", _bias),
        ("What is it for?", _stated("intended_use")),
    ),
    "Implementation": (
        ("Was the implementation tested?", _checks),
        ("Where does the randomness come from?", _randomness),
        ("Is floating-point arithmetic handled?", _floats),
        ("Are timing and other side channels handled?", _side_channels),
        ("Which quantities are not protected?", _unprotected),
        ("Can a reader know that this program ran as stated?", _genuine),
    ),
    "Trust, security and collection": (
        ("Which deployment model, and who has to be trusted?", _trust),
        ("Who answers for the release?", _stated("curators", "contact", "region", "sector")),
        ("How are the raw data secured, and who has access?", _stated("security")),
        ("How were the data collected, and does that expose people?", _stated("data_source", "data_changes")),
    ),
}
