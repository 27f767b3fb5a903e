"""Hints for commands and options of other tools: what to write here instead. Read when a command line is wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

_OPTIONS_BY_HINT = {
    "`dprecipe run --rehearse` takes a few steps on synthetic data, and `dprecipe plan` shows what a run would spend": (
        "dry-run dryrun fast-dev-run smoke-test simulate estimate no-train n"
    ),
    "the recipe's path stands by itself: dprecipe {command} recipe.yaml": (
        "config c cfg config-file config-name config-path config-dir recipe file f yaml conf params experiment"
    ),
    "write --out FOLDER": (
        "output o output-dir out-dir output-path save-dir save-path run-dir results-dir default-root-dir"
    ),
    "write --resume, with --out of the run that was interrupted": (
        "resume-from-checkpoint ckpt ckpt-path checkpoint continue"
    ),
    "write --data-root FOLDER": "data data-dir data-path dataset-dir data-root-dir root",
    "nothing is overwritten: name another folder by --out": "overwrite force overwrite-output-dir y yes exist-ok",
    "there is one level of detail; --debug shows tracebacks": "verbose v vv quiet q log-level silent",
    "write --format json": "json as-json format-json",
    "write runtime.loggers in the recipe": "wandb wandb-project tensorboard mlflow report-to logger log-dir",
    "a search spends privacy at every try: write `tuning` in the recipe, and use `dprecipe tune`": (
        "sweep multirun m optuna n-trials search"
    ),
}
_OPTIONS = {name: hint for hint, names in _OPTIONS_BY_HINT.items() for name in names.split()}
_COMMANDS_BY_OURS = {
    "run": "train fit start execute launch exec go",
    "validate": "check lint verify-recipe test-recipe verify-config syntax",
    "plan": "cost estimate budget dry-run dryrun account-for preview price calibrate",
    "predict": "infer inference score apply evaluate eval test",
    "init": "new create scaffold generate-config make template list ls gallery examples",
    "show": "render print config resolve render-config",
    "verify": "certify verify-certificate recheck",
    "sweep": "multirun grid grid-search",
    "tune": "search hyperopt optimize optimise hpo",
    "export": "convert save onnx push upload",
    "compare": "diff versus benchmark",
    "audit": "attack mia",
    "explain": "help-code code why",
}
_COMMANDS = {name: ours for ours, names in _COMMANDS_BY_OURS.items() for name in names.split()}
_OVERRIDE = re.compile(r"\+{0,2}(?P<path>[a-z_]+(?:\.[\w]+)*)=(?P<value>.*)")


def hint_at_option(option: str, command: str, known: Collection[str]) -> str | None:
    """Returns what to write instead of an option that a command does not have; None if that isn't known. `known`: the
    options that it has."""
    name = option.lstrip("-").partition("=")[0].replace("_", "-")
    hint = _OPTIONS.get(name)
    if hint is not None:
        written = re.findall(r"write (--[a-z-]+)", hint)
        return hint.format(command=command) if all(option in known for option in written) else None
    if "--set" not in known:
        return None
    path, remedy = _find_key(name.replace("-", "_"))
    if path:
        return f"it is a key of the recipe: --set {path}=…"
    return f"it is no option, and no key of the recipe: {remedy.removeprefix('remove it: ')}" if remedy else None


def _find_key(name: str) -> tuple[str, str]:
    """Returns the path that a name has in a recipe, or the reason why there is none."""
    from dprecipe.contract.table import MECHANISMS
    from dprecipe.recipe.synonyms import read_synonyms
    from dprecipe.recipe.vocabulary import list_every_key

    order = ["", *MECHANISMS]
    entries = sorted(read_synonyms().names.get(name, ()), key=lambda entry: order.index(entry.mechanism))
    for entry in entries:
        if entry.path and not entry.remedy.startswith(("remove it", "write")):
            return entry.path, ""
    homes = ("training", "budget", "runtime", "mechanism", "data", "model")
    paths = [known.path for known in list_every_key() if known.path.rpartition(".")[2] == name]
    near = sorted(
        (len(path.split(".")), homes.index(first), path) for path in paths if (first := path.split(".")[0]) in homes
    )
    if near and near[0][0] <= 3 and "<name>" not in near[0][2]:
        return near[0][2], ""
    return "", next((entry.remedy for entry in entries if entry.remedy.startswith("remove it: ")), "")


def hint_at_argument(argument: str, known: Collection[str]) -> str | None:
    """Returns what to write instead of an argument that a command does not take: `a.b=c` is an override; a shell
    makes a pattern the names of many files."""
    match = _OVERRIDE.fullmatch(argument)
    if match is not None and "--set" in known:
        return f"write --set {match['path']}={match['value']}"
    return "put a pattern of files in quotes: --from 'folder/*.csv'" if "--from" in known else None


def hint_at_command(name: str, known: Collection[str]) -> str | None:
    """Returns what to write instead of a command that there is not."""
    if name.endswith((".yaml", ".yml")):
        return f"say what to do with it: dprecipe validate {shlex.quote(name)}"
    ours = _COMMANDS.get(name.replace("_", "-").lower())
    return f"write dprecipe {ours}" if ours in known else None
