"""A verified certificate as an entry of the OpenDP Deployments Registry: a draft in YAML, for a person to complete.

Source: github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml of 15 July 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import yaml

from dprecipe.contract.table import mechanism_of
from dprecipe.language.statement import ReleaseStatement, quote_words
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.release import account_report, meaning
from dprecipe.release.card import plain_text
from dprecipe.release.schema import Predicate
from dprecipe.release.verify import Verified

SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
"""The registry knows no others so far; another one is left out."""
UNSTATED = "Not stated."
FULL_TIER = (
    *("actors", "releases", "data_changes", "security", "justification"),
    *("curators", "intended_use", "region"),
)
"""Keys of the statement that an entry of the third tier answers."""


def render_registry(verified: Verified) -> str:
    """Returns the entry. Texts of the recipe are escaped: the registry renders them as Markdown.

    Guarantees: it has the form of the registry's schema. What the certificate can't answer says "Not stated.", or is
    left out where the schema allows.
    """
    entry = describe_deployment(verified)
    return yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)


def describe_deployment(verified: Verified) -> dict[str, Any]:
    """Returns the entry, as values of JSON's types."""
    predicate = verified.statement.predicate
    stated = predicate.statement or ReleaseStatement()
    day = published_day(predicate)
    full = all(getattr(stated, key) is not None for key in FULL_TIER)
    return {
        "url_slug": write_slug(predicate.provenance.recipe.name, day),
        "status": "Draft",
        "tier": 3 if full else 2 if stated.curators and stated.intended_use and stated.region else 1,
        "deployment": {
            "basic": _basic(predicate, stated, day),
            "dp_variant": _variant(predicate),
            "privacy_loss": _privacy_loss(predicate),
            "deployment_model": _model(stated),
            "accounting": _accounting(predicate, stated),
            "implementation": _implementation(predicate, stated),
            "administrative": _administrative(verified, stated),
        },
    }


def published_day(predicate: Predicate) -> str:
    """Returns the stated day of publication, or that on which the run ended, as ISO 8601 writes it."""
    if predicate.statement is not None and predicate.statement.published is not None:
        return predicate.statement.published.isoformat()
    return datetime.fromisoformat(predicate.provenance.finished).date().isoformat()


def write_slug(name: str, day: str) -> str:
    """Returns an address for the entry: lower-case words and the year."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    return f"{words}-{day[:4]}"


def _basic(predicate: Predicate, stated: ReleaseStatement, day: str) -> dict[str, Any]:
    description = str(predicate.provenance.recipe.resolved.get("description", ""))
    sector = next((word for word in SECTORS if stated.sector and word.lower() == stated.sector.strip().lower()), None)
    return {
        "name": plain_text(predicate.provenance.recipe.name),
        "data_curators": [plain_text(name) for name in stated.curators or (UNSTATED,)],
        "intended_use": _declared(stated.intended_use),
        "data_product_type": "Machine learning model",
        "data_product_region": _declared(stated.region),
        "description": _declared(description.strip() or None),
        "publication_date": day,
        **({} if sector is None else {"data_product_sector": sector}),
    }


def _variant(predicate: Predicate) -> dict[str, Any]:
    sampling = predicate.sampling
    size = "an undeclared number of" if sampling.size is None else f"{sampling.size:,}"
    size = f"at most {size}" if sampling.size_is_bound else size
    return {
        "variant_name": "Approximate DP",
        "data_domain": plain_text(
            f"Data sets of {size} units, each of them one {predicate.claim.unit.name}, with the columns, ranges, "
            "categories and classes that the recipe in the certificate declares; what lies outside is clamped or "
            "counts as other."
        ),
        "unprotected_quantities": _bullets(predicate.claim.not_protected),
    }


def _privacy_loss(predicate: Predicate) -> dict[str, Any]:
    claim = predicate.claim
    change = Neighbouring(claim.neighbouring).words.format(unit=claim.unit.name)
    points = ", ".join(f"({point.epsilon:g}, {point.delta:g})" for point in claim.profile)
    details = [
        meaning.describe_attack(claim),
        meaning.describe_scale(claim),
        *(f"{name}: {text}" for name, text in meaning.list_risk(claim)),
        *(f"{name}, at the same δ: {text}" for name, text in meaning.list_group(claim)),
        *([f"The same release is (ε, δ)-DP for every pair of: {points}"] if points else []),
        *(
            [f"No worse than Gaussian DP of μ = {claim.gdp.mu:g}, for every ε"]
            if claim.gdp is not None and claim.gdp.to_epsilon is None
            else []
        ),
        *(f"{row.name} ({row.version}): ε = {row.epsilon}; {row.bound}" for row in predicate.accounting),
    ]
    return {
        "privacy_unit": plain_text(claim.unit.name),
        "privacy_unit_details": plain_text(
            f"Neighbouring data sets differ by {change}. {meaning.describe_unit(claim)}."
        ),
        "privacy_parameters": {"epsilon": claim.epsilon, "delta": claim.delta},
        "privacy_parameters_details": _bullets(details),
    }


def _model(stated: ReleaseStatement) -> dict[str, Any]:
    releases = {"one": "One release", "many": "Many releases"}
    sources = {True: "Dynamic", False: "Static"}
    optional = {
        "actors": stated.actors,
        "release_type_details": stated.future_releases,
        "data_source_type_details": stated.data_source,
    }
    fixed = {
        "model_name": "Federated" if stated.deployment_model == "federated" else "Central",
        "model_name_details": "Whoever ran the program saw the raw records and is trusted with them; the claim is "
        "about what was released.",
        **({} if stated.releases is None else {"release_type": releases[stated.releases]}),
        **({} if stated.data_changes is None else {"data_source_type": sources[stated.data_changes]}),
        "access_type": "Non-interactive",
    }
    return fixed | {key: plain_text(text) for key, text in optional.items() if text is not None}


def _accounting(predicate: Predicate, stated: ReleaseStatement) -> dict[str, Any]:
    budget = predicate.budget
    composition = [
        f"events charged: {predicate.events.total:,}, in attempts: {budget.attempts:,}; composed by "
        f"{predicate.accounting[0].name}; what was reserved before a crash counts as spent",
        account_report.describe_other_runs(predicate.account),
        *([f"further releases (declared): {quote_words(stated.future_releases)}"] if stated.future_releases else []),
    ]
    return {
        "post_processing": "Everything done with what the noisy steps released: updates of the weights, averages and "
        "denoising, where the recipe has them. The released files are rebuilt from the certificate or named by it.",
        "composition": _bullets(composition),
    }


def _implementation(predicate: Predicate, stated: ReleaseStatement) -> dict[str, Any]:
    access, part = predicate.data_access, mechanism_of(predicate.mechanism.kind).certificate
    versions = predicate.provenance.versions
    mechanisms = [
        f"{predicate.mechanism.kind}: {part.describe_noise(predicate.mechanism)}",
        f"sampling: {predicate.sampling.scheme}",
        "implemented with " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"floating point: {meaning.FLOATING_POINT[predicate.numerics.floating_point]}",
        f"randomness: {meaning.describe_randomness(predicate.randomness)}",
        "timing, memory and every other side channel of the machine are not covered by the claim",
        f"security of the raw data (declared): {quote_words(stated.security)}"
        if stated.security
        else f"security of the raw data: {UNSTATED}",
    ]
    used = {"preprocessing": access.preprocessing, "tuning": access.tuning, "evaluation": access.evaluation}
    return {
        "preprocessing_and_hyperparameter_tuning": _bullets(
            f"{name} ({use.status.replace('_', ' ')}): {use.text}" for name, use in used.items()
        ),
        "mechanisms": _bullets(mechanisms),
        "justification": _declared(stated.justification),
    }


def _administrative(verified: Verified, stated: ReleaseStatement) -> dict[str, Any]:
    notes = [
        "a draft, written by dprecipe from a certificate that verifies; complete it before you submit it",
        f"digest of the recipe: {verified.statement.predicate.provenance.recipe.digest}",
        *verified.notes,
    ]
    return {
        **({} if stated.sources is None else {"sources": plain_text(stated.sources)}),
        "notes": _bullets(notes),
        "registry_authors": [plain_text(name) for name in stated.authors or (UNSTATED,)],
    }


def _declared(text: str | None) -> str:
    return UNSTATED if text is None else plain_text(text)


def _bullets(texts: Iterable[str]) -> str:
    """Returns a list in Markdown."""
    return "".join(f"- {plain_text(text)}\n" for text in texts)
