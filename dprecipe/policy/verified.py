"""Check of a verified certificate, no matter who made it, against a policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dprecipe.faults import CertificateInvalid
from dprecipe.policy.facts import forget_name, read_facts
from dprecipe.policy.read import read_policy
from dprecipe.policy.rules import check_policies
from dprecipe.recipe.read import read_source
from dprecipe.release.rebuild import stated_source
from dprecipe.release.sign import key_id, load_public_key
from dprecipe.release.verify import Verified


def hold_certificate(verified: Verified, path: Path, public_key: Path | None = None) -> str:
    """Checks a certificate against the policy at `path`; returns what holds, in words. The recipe is that of the
    certificate, ε its claim, and the signature counts if it was checked with `public_key`.

    Raises:
        RecipeError: the policy is wrong.
        CertificateInvalid: with what the policy does not allow.
    """
    loaded_policy = read_policy(path)
    predicate = verified.statement.predicate
    provenance = predicate.provenance
    loaded = read_source(stated_source(predicate))
    facts = read_facts(loaded.recipe)
    if provenance.model == "python":
        facts = replace(facts, model="python")
    if provenance.data == "python":  # which of the sources, the certificate does not say
        data = tuple(map(forget_name, facts.data))
        facts = replace(facts, sources=(*facts.sources, ("data", "python")), data=data)
    key = None if public_key is None else key_id(load_public_key(public_key))
    facts = replace(
        facts,
        epsilon=verified.claim.epsilon,
        delta=verified.claim.delta,
        signing="none" if key is None else "known",
        key=key,
        versions=provenance.versions,
    )
    findings = loaded.located(check_policies(facts, [loaded_policy]))
    if findings:
        raise CertificateInvalid([f"{finding.headline}: {finding.message}" for finding in findings])
    record = loaded_policy.record
    known = any(policy.digest == record.digest for policy in provenance.policies)
    unseen = "; the targets of links and the data root were not checked" if loaded_policy.names_data else ""
    before = "the run was checked against the same text" if known else f"the run names other policies, or none{unseen}"
    return f"it keeps to the policy {record.name!a} ({record.digest}); {before}"
