"""The page beside synthetic records: which release wrote them, and what that release's certificate claims.

Records that a release writes are post-processing of it, so its claim holds for them without any further cost: source
C. Dwork and A. Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Proposition 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dprecipe.release.folder import CERTIFICATE, ENVELOPE
from dprecipe.release.untrusted import sha256_of
from dprecipe.release.verify import Verified

SCHEMA = "dprecipe.synthetic/v1"
COSTS_NOTHING = (
    "these records were computed from the release alone (post-processing), so the claim holds for them as it holds for "
    "the release, and nothing more was spent"
)
NO_CLAIM = "no certificate was checked: nothing is claimed of these records"
NOT_SHOWN = (
    "the claim is about the records of training: a text may still resemble one of the public texts that the base model "
    "was trained on",
    "whether the records are useful, or like the true ones, is not part of the claim",
)


class Tallied(Protocol):
    """Writer of the records."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def tally(self) -> Any: ...


def describe_synthetic(
    release: Path,
    verified: Verified | None,
    file: Path,
    name: str,
    writer: Tallied,
    wanted: Sequence[tuple[str | None, int]],
    sampling: tuple[float, float, int],
) -> dict[str, Any]:
    """Returns the statement about `file`, which is to be called `name`; JSON types only. `sampling`: temperature, top-p
    and seed.

    Raises `OSError`.
    """
    temperature, top_p, seed = sampling
    return {
        "schema": SCHEMA,
        "file": {
            "name": name,
            "digest": sha256_of(file),
            "records": sum(count for _, count in wanted),
            "columns": list(writer.names),
        },
        "generation": {
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            **({} if wanted[0][0] is None else {"by_value": {str(value): count for value, count in wanted}}),
            "texts": writer.tally.written,
            "accepted": writer.tally.accepted,
            "rejected": dict(sorted(writer.tally.rejected.items())),
        },
        "release": _describe_release(release, verified),
        "claim": None if verified is None else _describe_claim(verified),
        "cost": NO_CLAIM if verified is None else COSTS_NOTHING,
        "not_shown": list(NOT_SHOWN),
    }


def _describe_release(release: Path, verified: Verified | None) -> Mapping[str, Any]:
    files = sorted({path.name for path in release.iterdir() if path.suffix == ".safetensors"})
    weights = {name: sha256_of(release / name) for name in files}
    if verified is None:
        return {"weights": weights}
    proofs = [name for name in (CERTIFICATE, ENVELOPE) if (release / name).is_file()]
    return {
        "recipe": verified.statement.predicate.provenance.recipe.name,
        "certificate": {name: sha256_of(release / name) for name in proofs},
        "weights": weights,
    }


def _describe_claim(verified: Verified) -> Mapping[str, Any]:
    claim = verified.claim
    return {"epsilon": claim.epsilon, "delta": claim.delta, "sentence": claim.sentence}
