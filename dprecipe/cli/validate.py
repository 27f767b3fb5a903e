"""`dprecipe validate`: check recipes and their privacy arithmetic; reads no data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe import __version__
from dprecipe.cli import render
from dprecipe.cli.arguments import Overrides, PolicyPath
from dprecipe.cli.completion import complete_words
from dprecipe.cli.guard import show_traceback
from dprecipe.faults import Fault, Finding, Place, RecipeError, Severity, UsageFault
from dprecipe.language.tuning import TUNABLE
from dprecipe.libraries import is_failure
from dprecipe.planning import accounts, rules
from dprecipe.planning.paths import declared_files
from dprecipe.policy.apply import check_loaded
from dprecipe.policy.find import is_policy_file
from dprecipe.recipe.read import Loaded, LoadedPublic, read_any
from dprecipe.screen import is_output_watched, show_document, write_output

FORMATS = ("text", "json", "github", "sarif")
SUFFIXES = (".yaml", ".yml")


def validate(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recipes, or folders of *.yaml and *.yml.")],
    output: Annotated[
        str, typer.Option("--format", help="text, json, github or sarif", autocompletion=complete_words(*FORMATS))
    ] = "text",
    data_root: Annotated[
        Path | None, typer.Option(help="Also warn about declared files that are missing from this folder.")
    ] = None,
    policy: PolicyPath = None,
    overrides: Overrides = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Check again whenever a recipe or policy changes, until Ctrl-C.")
    ] = False,
) -> int:
    """Prints every finding of recipes; folders are searched for `*.yaml` and `*.yml`, but for folders of runs in them,
    whose recipes are copies. Exit code: 1 for errors.

    With `watch`, does so again whenever a file changes (`dprecipe.cli.watch`), until it is interrupted.

    With `data_root`, also warn about declared data files that are missing there; their contents are not read. Recipes
    are checked against the policies above them and `policy`; policies among the files are checked themselves.
    `overrides` are laid over each recipe.

    Raises:
        UsageFault: the format is unknown, or a folder has no recipe.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")

    def list_files() -> list[Path]:
        return list(dict.fromkeys(file for path in paths for file in _recipes(path)))

    def run() -> tuple[int, list[str]]:
        code, read = _check_all(list_files(), data_root, policy, overrides or (), output)
        return code, [*read, *([] if policy is None else [str(policy)])]

    if not watch:
        return run()[0]
    from dprecipe.cli.watch import watch as watch_files

    watch_files(lambda: run()[1], list_files)
    return 0


def _check_all(
    files: Sequence[Path], data_root: Path | None, policy: Path | None, overrides: Sequence[str], output: str
) -> tuple[int, list[str]]:
    """Prints every finding of these files; returns the exit code, and what was read."""
    findings: list[Finding] = []
    texts: dict[str, str] = {}
    recipes: list[Loaded] = []
    for file in files:
        result, read_texts, loaded = check(file, data_root, policy, overrides)
        findings += result
        texts |= read_texts
        recipes += [] if loaded is None else [loaded]
    try:
        findings += find_siblings(recipes)
    except Exception as error:  # a bug of ours hides no finding
        findings.append(_describe_failure(error, None))
    _write(findings, texts, len(files), output)
    return int(any(finding.is_error for finding in findings)), list(texts)


def check(
    file: Path, data_root: Path | None = None, policy: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[tuple[Finding, ...], dict[str, str], Loaded | None]:
    """Returns the findings of one recipe, each with its place; the texts they point into; and a private recipe that is
    read. An error of ours is a finding too: other recipes are checked all the same."""
    try:
        return _check(file, data_root, policy, overrides)
    except RecipeError as error:
        return error.findings, error.texts, None
    except Fault:
        raise
    except BaseException as error:  # a bug of ours, or a panic of a library
        if not is_failure(error):
            raise
        return (_describe_failure(error, Place(str(file), 1, 1)),), {}, None


def _describe_failure(error: BaseException, place: Place | None) -> Finding:
    """Returns an error of ours, by its type alone: its message may quote a line that has a secret."""
    show_traceback()
    return Finding(
        "R199",
        f"it can't be checked: internal error ({type(error).__name__}), a bug of dprecipe {__version__}",
        "report it, with the recipe and what `dprecipe validate --debug` prints of it",
        place=place,
    )


def _check(
    file: Path, data_root: Path | None, policy: Path | None, overrides: Sequence[str]
) -> tuple[tuple[Finding, ...], dict[str, str], Loaded | None]:
    if is_policy_file(file):
        from dprecipe.policy.read import read_policy

        read_policy(file)
        return (), {}, None
    loaded = read_any(file, overrides)
    violations = check_loaded(loaded, policy)
    if isinstance(loaded, LoadedPublic):
        from dprecipe.nonprivate.plan import check as check_public

        findings = check_public(loaded.recipe)
    else:
        findings = rules.check(loaded.recipe, loaded.source.attachments)
        findings += accounts.check_file(loaded.recipe, file)
    if data_root is not None:
        findings += _absent_files(loaded, data_root)
    private = None if isinstance(loaded, LoadedPublic) else loaded
    return loaded.located([*findings, *violations]), dict(loaded.texts), private


def _recipes(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    result = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and _is_searched(path, file))
    if not result:
        raise UsageFault(f"{path} has no *.yaml or *.yml file", "name a recipe, or a folder that has one")
    return result


def _is_searched(folder: Path, file: Path) -> bool:
    """Returns True if nothing on the way from the folder to the file is hidden, or the folder of a run."""
    inner = file.relative_to(folder)
    between = [folder / parent for parent in inner.parents if parent.parts]
    in_run = any((each / "plan.json").is_file() and (each / "resolved.yaml").is_file() for each in between)
    return not in_run and not any(part.startswith(".") for part in inner.parts)


def _absent_files(loaded: Loaded | LoadedPublic, root: Path) -> Iterator[Finding]:
    for key, _, declared in declared_files(loaded.recipe):
        if not (root / declared).is_file():
            yield Finding(
                "R120",
                f"there is no file {declared} under {root}",
                "put it there, or correct the path",
                key,
                severity=Severity.WARNING,
            )


def _write(findings: Sequence[Finding], texts: dict[str, str], recipes: int, output: str) -> None:
    if output == "json":
        entries = tuple(render.FindingEntry.of(finding) for finding in findings)
        show_document(render.Findings(recipes=recipes, findings=entries).to_text())
    elif output == "github":
        show_document(render.as_github(findings, recipes))
    elif output == "sarif":
        show_document(render.as_sarif(findings))
    else:
        hint = render.hint_at_pages(findings, is_output_watched())
        write_output([*render.as_lines(findings, texts), *hint, render.render_summary(findings, recipes)])


WORDS = ("name", "description", "meta", "accept", "runtime", "release")
"""Keys of a recipe that make it no other run."""
MAX_SHOWN = 3


def find_siblings(recipes: Sequence[Loaded]) -> Iterator[Finding]:
    """Yields a warning for each recipe whose values, and nothing else, differ from those of one before it (P188).

    The same keys, the same data, budget and mechanism; at least one other number or word under `training`, `model`,
    `mechanism` or `data.preprocess`. Recipes with `tuning` have said what they try.
    """
    known: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for loaded in recipes:
        if loaded.recipe.tuning is not None:
            continue
        leaves = dict(_list_leaves(loaded.recipe.model_dump(mode="json", by_alias=True, exclude=set(WORDS))))
        values = {path: value for path, value in leaves.items() if _is_tunable(path)}
        rest = {path: value for path, value in leaves.items() if path not in values}
        group = (tuple(values), tuple(rest.items()))
        if group not in known:
            known[group] = (loaded.source.file, values)
            continue
        file, others = known[group]
        paths = [path for path, value in values.items() if value != others[path]]
        if paths:
            shown = ", ".join(paths[:MAX_SHOWN]) + (" and others" if len(paths) > MAX_SHOWN else "")
            yield from loaded.located(
                [
                    Finding(
                        "P188",
                        f"it differs from {file} only in {shown}: whoever runs both on the same records and keeps the "
                        "better one spends more than either says",
                        "write one recipe with a block `tuning` over these keys, or keep one of them",
                        paths[0],
                        severity=Severity.WARNING,
                    )
                ]
            )


def _is_tunable(path: str) -> bool:
    tag = path.rpartition(".")[2] in ("kind", "family", "scheme", "mode", "source")
    return not tag and any(path.startswith(f"{root}.") for root in TUNABLE)


def _list_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _list_leaves(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _list_leaves(inner, f"{path}.{index}")
    else:
        yield path, value
