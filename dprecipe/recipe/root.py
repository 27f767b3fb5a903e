"""The root of a recipe: ten blocks, each with one job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dprecipe.data.schema import Data
from dprecipe.mechanisms.rooms import Mechanism
from dprecipe.models.schema import Model
from dprecipe.recipe.base import (
    Auto,
    Block,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SolvableFloat,
    Text,
)
from dprecipe.recipe.training import Training


class Budget(Block):
    """The most that may be spent, and how it is counted."""

    epsilon: SolvableFloat = Field(description="ε, the cap; `auto` computes it from a fixed noise and length")
    delta: Fraction = Field(description="δ, the chance that ε does not hold; far below 1 / data.size")
    neighbouring: Literal["add_or_remove_one", "replace_one", "zero_out_one"] = Field(
        "add_or_remove_one", description="which two data sets must be hard to tell apart"
    )
    accountant: Literal["pld", "rdp"] = Field(
        "pld", description="`pld`: privacy-loss distributions, tightest; `rdp`: Rényi, looser and simpler"
    )


class InsecureRandomness(Block):
    """Fixed randomness, for tests: the certificate says so and does not verify as a release."""

    seed: NonNegativeInt


class Runtime(Block):
    """Where it runs. Nothing here can change what is spent, so it is outside the plan digest."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal[32, "bf16"] = Field(
        32, description="of the forward and backward pass: single, or `bf16` where torch mixes it in; for `dpsgd`"
    )
    compile: Literal["auto", True, False] = Field(
        "auto", description="compile the gradient's pass: `auto` where a run is long and gains by it; for `dpsgd`"
    )
    physical_batch: PositiveInt = Field(512, description="records held in memory at once")
    processes: PositiveInt = Field(1, description="of this machine that run it together, one a GPU; for `dpsgd`")
    seed: NonNegativeInt = Field(
        0, description="of the model's initial weights; never of sampling, augmentation or noise"
    )
    checkpoint_seconds: PositiveFloat = Field(30.0, description="longest time between resumable checkpoints")
    python_tensors: Literal["declare", "refuse"] = Field(
        "declare",
        description="tensors of a module from Python that no noisy step makes (buffers, fixed parameters): `declare` "
        "them as an assumption of the certificate, or `refuse` the run",
    )
    insecure: InsecureRandomness | None = Field(None, description="tests only: makes sampling and noise repeatable")


Reason = Annotated[str, Field(min_length=1, max_length=300)]
"""Why a warning is accepted: one line, for the certificate."""


class Sign(Block):
    """Who signs the certificate."""

    key: Text = Field(description="path of an Ed25519 private key (PEM), relative to the recipe")


class Release(Block):
    """What is published, and who signs it."""

    report: bool = Field(True, description="write report.html and card.md")
    labels: bool = Field(False, description="publish the released labels too (labels.csv)")
    sign: Sign | None = None


class Recipe(Block):
    """One recipe: what is to be learned, and how much privacy may be spent."""

    recipe: Literal["dprecipe/v1"] = Field(description="the version of the language")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    description: str = ""
    data: Data
    model: Model
    mechanism: Mechanism
    budget: Budget
    training: Training = Field(default_factory=Training)
    runtime: Runtime = Field(default_factory=Runtime)
    release: Release = Field(default_factory=Release)
    accept: dict[Annotated[str, Field(max_length=20)], Reason] = Field(
        default_factory=dict, max_length=20, description="warnings that are accepted: the code, and the reason"
    )
    meta: dict[str, Any] = Field(default_factory=dict, description="free-form; nothing reads it")


__all__ = ["Auto", "Budget", "Recipe", "Release", "Runtime", "Training"]
