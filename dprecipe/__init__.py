"""dprecipe: a recipe in YAML becomes a private model and a certificate that a stranger can verify.

Public names are loaded on use, so that importing the package costs nothing and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dprecipe.api import build as build
    from dprecipe.api import load as load
    from dprecipe.api import load_language_model as load_language_model
    from dprecipe.api import load_model as load_model
    from dprecipe.api import plan as plan
    from dprecipe.api import run as run
    from dprecipe.api import settle as settle
    from dprecipe.api import tune as tune
    from dprecipe.api import verify as verify
    from dprecipe.data.records import Records as Records
    from dprecipe.faults import BudgetSpent as BudgetSpent
    from dprecipe.faults import CertificateInvalid as CertificateInvalid
    from dprecipe.faults import DataFault as DataFault
    from dprecipe.faults import Fault as Fault
    from dprecipe.faults import Interrupted as Interrupted
    from dprecipe.faults import PlanRefused as PlanRefused
    from dprecipe.faults import RecipeError as RecipeError
    from dprecipe.faults import RunFailed as RunFailed

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(
        ("build", "load", "load_language_model", "load_model", "plan", "run", "settle", "tune", "verify"),
        "dprecipe.api",
    ),
    "Records": "dprecipe.data.records",
    **dict.fromkeys(
        (
            "BudgetSpent",
            "CertificateInvalid",
            "DataFault",
            "Fault",
            "Interrupted",
            "PlanRefused",
            "RecipeError",
            "RunFailed",
        ),
        "dprecipe.faults",
    ),
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dprecipe' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
