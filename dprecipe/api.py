"""The Python interface: load, plan, run, build, tune, verify, settle, load_model, load_language_model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprecipe.faults import UsageFault
from dprecipe.libraries import ignoring_warnings
from dprecipe.planning.make import plan as make_plan
from dprecipe.policy.apply import enforce_on_plan
from dprecipe.recipe.read import Loaded, read

if TYPE_CHECKING:
    from torch import nn

    from dprecipe.contract.plan import Plan
    from dprecipe.models.language_model import LanguageModel
    from dprecipe.models.load import Released
    from dprecipe.release.verify import Verified
    from dprecipe.training.publish.held import Completed
    from dprecipe.training.run.runner import Run
    from dprecipe.training.steps.built import Built
    from dprecipe.training.tuning.run import TunedRun


@ignoring_warnings()
def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """Reads a recipe; `overrides` maps dotted paths to values: `{"training.epochs": 3}`.

    What is relative to the recipe (its policies, account, key and data) stays where it is now if the process changes
    its folder.

    Raises:
        RecipeError: with every finding of its text and structure.
        UsageFault: it is the folder of a release, or `overrides` is no mapping.
    """
    from dprecipe.text.dump import dump_inline

    if overrides is not None:
        _check_type("overrides", overrides, Mapping, 'pass a mapping: {"training.epochs": 3}')

    if (Path(path) / "model.json").is_file():
        raise UsageFault(f"{path} is a release, and no recipe", "dprecipe.load_model(release)")
    return read(Path(path).absolute(), [f"{key}={dump_inline(value)}" for key, value in (overrides or {}).items()])


@ignoring_warnings()
def plan(loaded: Loaded) -> Plan:
    """Solves a recipe's free variable and freezes what a run will do and spend: see `dprecipe.planning.make.plan`. The
    recipe is checked against the policies found above it.

    Raises:
        RecipeError: a policy is wrong.
        PlanRefused: with every finding, each at its place in the recipe.
        UsageFault: `loaded` is not what `load` returns.
    """
    _check_type("loaded", loaded, Loaded, "load the recipe first: dprecipe.plan(dprecipe.load(path))")
    return enforce_on_plan(make_plan(loaded))


@ignoring_warnings()
def run(
    plan: Plan,
    out: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    train: object | None = None,
    public: object | None = None,
    test: object | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    accept_lost_steps: bool = False,
    teachers: Sequence[str | Path] = (),
    cluster: str | None = None,
) -> Run:
    """Trains as `plan` says and writes the run folder: see `dprecipe.training.run.start.run`.

    `model`, `train`, `public` and `test` replace what the recipe names: see `dprecipe.data.python_records`. `resume`
    continues an interrupted run. `accept_lost_steps`: release the model even if interruptions or missing files cost it
    more than half of the planned steps. `teachers`: folders of `dprecipe teachers`, which together hold the votes of
    all. `cluster`: an address, as of `tune`, where teachers are trained.

    Raises:
        RecipeError, PlanRefused, UsageFault: see `dprecipe.training.run.request.request_run`; and the faults of a run.
    """
    from dprecipe.libraries import importing_libraries

    _check_training(plan, model)
    with importing_libraries():
        from dprecipe.training.run.request import RunOptions, request_run
        from dprecipe.training.run.start import run as carry_out

    path = None if out is None else Path(out)
    options = RunOptions(path, data_root, resume, accept_lost_steps, teachers, cluster, model, train, public, test)
    return carry_out(request_run(plan, options))


@ignoring_warnings()
def build(
    plan: Plan,
    out: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    train: object | None = None,
    public: object | None = None,
    test: object | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    accept_lost_steps: bool = False,
) -> Built:
    """Makes a Lightning module, its data and its callbacks, for a trainer of your own; spends nothing yet.

        built = dprecipe.build(dprecipe.plan(dprecipe.load("recipe.yaml")), "runs/mine")
        trainer = lightning.Trainer(callbacks=[*built.callbacks, ...], logger=...)
        trainer.fit(built.module, built.data)
        run = built.release()

    Arguments are those of `run`. See `dprecipe.training.steps.built.Built` for what is guaranteed.

    Raises:
        UsageFault: the mechanism takes no steps of noise, several processes were asked for, or the pace of
            steps is secret.
        RecipeError, PlanRefused, Fault: as `run`, before anything is spent.
    """
    from dprecipe.libraries import importing_libraries

    _check_training(plan, model)
    with importing_libraries():
        from dprecipe.training.run.request import RunOptions
        from dprecipe.training.steps.built import build_run

    path = None if out is None else Path(out)
    inputs = (model, train, public, test)
    return build_run(plan, RunOptions(path, data_root, resume, accept_lost_steps, (), None, *inputs, "python"))


@ignoring_warnings()
def tune(
    plan: Plan,
    out: str | Path | None = None,
    *,
    data_root: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    cluster: str | None = None,
) -> TunedRun:
    """Makes the runs of a recipe with `tuning`, up to `jobs` at once, and releases the best of them: see
    `dprecipe.training.tuning.run.tune`. `jobs`: 1 by default, and on a cluster as many as it can hold. With several
    jobs a script has to be importable: guard its call of this by `if __name__ == "__main__"`.

    `cluster`: on a cluster of Ray's, as `--ray` of the command: "local" starts one, "auto" finds that of this machine,
    and HOST:PORT is the address of another one's head.

    Raises:
        UsageFault: Ray is not installed or no cluster is reachable, before anything is spent; see there for the others.
    """
    from dprecipe.libraries import TRAINING, check_libraries, importing_libraries

    _check_plan(plan)
    check_libraries("tuning", *TRAINING)
    with importing_libraries():
        from dprecipe.training.tuning.run import tune as tune_plan

    return tune_plan(plan, out, data_root=data_root, resume=resume, jobs=jobs, cluster=cluster)


@ignoring_warnings()
def verify(
    path: str | Path, public_key: str | Path | None = None, account_statement: str | Path | None = None
) -> Verified:
    """Recomputes a certificate: see `dprecipe.release.verify.verify`; with `account_statement`, compares what it says
    of its account with the account's own statement, too: see `dprecipe.release.account_statement.hold_statement`.

    Raises:
        CertificateInvalid: naming each thing that does not hold.
    """
    from dprecipe.release.verify import verify as verify_certificate

    verified = verify_certificate(Path(path), None if public_key is None else Path(public_key))
    if account_statement is None:
        return verified
    from dprecipe.release.account_statement import hold_statement

    return hold_statement(verified, Path(account_statement))


@ignoring_warnings()
def settle(run: str | Path) -> Completed:
    """Settles a run whose account could not be reached at its end, and writes the release that was held back: see
    `dprecipe.training.publish.held.complete_run`.

    Raises:
        AccountUnavailable: the account still can't be reached; nothing has changed.
    """
    from dprecipe.libraries import importing_libraries

    with importing_libraries("settling a run"):
        from dprecipe.training.publish.held import complete_run

    return complete_run(Path(run))


@ignoring_warnings()
def load_language_model(release: str | Path, base: str | Path | None = None, device: str = "cpu") -> LanguageModel:
    """Returns a released language model that writes texts: see `dprecipe.models.language_model.load_language_model` and
    `LanguageModel`.

    Raises:
        DataFault: a file is missing or damaged, it is another kind of model, or `base` holds other weights.
        UsageFault: `base` is missing, or given where the release has all weights; the device is not there; or torch or
            transformers is not installed.
    """
    from dprecipe.libraries import importing_libraries

    with importing_libraries("a language model"):
        from dprecipe.models.language_model import load_language_model as load_released

    return load_released(release, base, device)


@ignoring_warnings()
def load_model(release: str | Path, module: nn.Module | None = None) -> Released:
    """Returns a released model that predicts raw records: see `dprecipe.models.load.load` and `Released`.

    Raises:
        DataFault: a file is missing or damaged, or the module came from Python and was not passed.
        UsageFault: torch is not installed, or `module` is no module.
    """
    from dprecipe.libraries import importing_libraries

    _check_module("module", module)
    with importing_libraries("a model"):
        from dprecipe.models.load import load as load_released

    return load_released(release, module)


def _check_training(plan: object, model: object) -> None:
    from dprecipe.libraries import TRAINING, check_libraries

    _check_plan(plan)
    check_libraries("training", *TRAINING)
    _check_module("model", model)


def _check_plan(plan: object) -> None:
    from dprecipe.contract.plan import Plan

    _check_type("plan", plan, Plan, "plan the recipe first: dprecipe.plan(dprecipe.load(path))")


def _check_module(name: str, module: object) -> None:
    from dprecipe.libraries import importing_libraries

    if module is None:
        return
    with importing_libraries("a module"):
        from torch import nn

    _check_type(name, module, nn.Module, "pass an instance of a class of torch.nn.Module, such as Network()")


def _check_type(name: str, value: object, kind: type, remedy: str) -> None:
    """Checks the type of an argument.

    Raises:
        UsageFault: it has another one.
    """
    if not isinstance(value, kind):
        found = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        raise UsageFault(f"`{name}` is {found}, expected {kind.__name__}", remedy)
