"""Libraries that the light install has not: a missing or broken one is named, with the command that fixes it.

Every import of an optional library stands in a block of `importing_libraries`, or in a module whose own import does.

Warnings of libraries are words to programmers, which reach no user's screen and decide nothing. A filter that makes
errors of warnings (`python -W error`) would make one wherever a library finds something to say: in the middle of a
step, whose noise is drawn; or where a failure means that a model goes through another engine.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from importlib.util import find_spec

from dprecipe.faults import Fault, RunFailed, UsageFault

PACKAGE = "dprecipe"
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "train": {
        "torch": "torch",
        "lightning": "lightning",
        "safetensors": "safetensors",
        "sklearn": "scikit-learn",
        "threadpoolctl": "threadpoolctl",
        "pyarrow": "pyarrow",
        "PIL": "pillow",
    },
    "hub": {"timm": "timm", "transformers": "transformers", "tokenizers": "tokenizers"},
    "onnx": {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"},
    "ray": {"ray": "ray"},
    "keep": {"pyrage": "pyrage"},
    "tensorboard": {"tensorboardX": "tensorboardX"},
    "mlflow": {"mlflow": "mlflow-skinny"},
    "wandb": {"wandb": "wandb"},
    "duckdb": {"duckdb": "duckdb"},
    "postgres": {"psycopg": "psycopg"},
}
"""The optional libraries by the extra that installs them: the name of the import, and that of the package."""
TRAINING = ("torch", "lightning", "safetensors", "sklearn")
"""The libraries that a run imports, some of them after its first charge."""
_is_own_process = False
TORCHVISION_OFFSET = 15
"""torchvision 0.(n + 15) is made for torch 2.n, and fails with any other."""


def own_process() -> None:
    """Tells that this process runs a command and nothing else: what there is after an import of libraries then stays to
    the end. In another program's process some of it may become garbage."""
    global _is_own_process
    _is_own_process = True


def is_own_process() -> bool:
    """Returns True if this process runs a command and nothing else."""
    return _is_own_process


def is_failure(error: BaseException) -> bool:
    """Returns True for an error, and for a panic of a library in Rust (tokenizers, pydantic), which is no
    `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def leaving_out(*names: str) -> Iterator[None]:
    """Inside, an import of these libraries fails as if they were not installed, where this process runs a command and
    nothing else: for libraries that import others which no command needs of them. What was imported before stays."""
    hidden = [name for name in names if _is_own_process and name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: it is not there
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def is_installed(name: str) -> bool:
    """Returns True if a library can be found; nothing is imported."""
    try:
        return find_spec(name) is not None
    except ValueError:  # of a module that was put in place without a file
        return True


def check_libraries(subject: str, *names: str) -> None:
    """Checks that libraries are installed, without importing them. `subject`: what needs them, as messages begin.

    Raises:
        UsageFault: naming those that are not, and the extra that installs them.
    """
    missing = [name for name in names if not is_installed(name)]
    if missing:
        raise _name_missing(subject, missing)


@contextmanager
def importing_libraries(subject: str = "training", package: str = PACKAGE) -> Iterator[None]:
    """Turns import errors inside the block into faults. `subject`: what needs the libraries, as messages begin.
    `package`: whose modules are imported; an error of its own is raised unchanged.

    Raises:
        UsageFault: a library of an extra is not installed.
        RunFailed: the import of a library raises.
    """
    silence_loggers()
    try:
        with _pausing_collection(), ignoring_warnings():
            yield
    except Fault:
        raise
    except Exception as error:  # the import of a library may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and any(missing in libraries for libraries in EXTRAS.values()):
            raise _name_missing(subject, [missing]) from error
        own = {PACKAGE, package.partition(".")[0]}
        name = _find_broken_package(error, own)
        if name in own:
            raise
        text = " ".join(str(error).split())[:200]
        raise RunFailed(
            f"{name} can't be imported ({type(error).__name__}: {text}), and {subject} needs it",
            _remedy(name),
        ) from error


def _name_missing(subject: str, names: Sequence[str]) -> UsageFault:
    extras = {extra: [libraries[name] for name in names if name in libraries] for extra, libraries in EXTRAS.items()}
    libraries = [library for each in extras.values() for library in each]
    verb = "is" if len(libraries) == 1 else "are"
    needed = ",".join(extra for extra, each in extras.items() if each)
    return UsageFault(
        f"{subject} needs {', '.join(libraries)}, which {verb} not installed", f"pip install 'dprecipe[{needed}]'"
    )


@contextmanager
def _pausing_collection() -> Iterator[None]:
    """Inside, no garbage is collected: imports make hundreds of thousands of objects that stay, and each collection
    would look at them again. Afterwards they count as old, or are never looked at: see `own_process`. A block that has
    imported nothing leaves all as it was."""
    collecting, imported = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) == imported:
            pass
        elif _is_own_process:
            gc.freeze()
        elif not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if collecting:
            gc.enable()


def _find_broken_package(error: Exception, own: Set[str]) -> str:
    """Returns the package whose import failed: the innermost one that is neither torch, which all of them import, nor
    `own`."""
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [name.partition(".")[0] for name in names]
    known = [package for package in packages if package and package not in sys.stdlib_module_names]
    last = max((place for place, package in enumerate(known) if package in own), default=-1)
    imported = known[last + 1 :]  # by the innermost of our modules
    candidates = [package for package in imported if package != "torch"]
    return [PACKAGE, *imported, *candidates][-1]


def _remedy(package: str) -> str:
    from importlib import metadata  # as slow as all other imports of `--help` that are ours

    name = next(iter(metadata.packages_distributions().get(package, ())), package)
    unneeded = f"or, if you don't need it: pip uninstall {name}"
    if package == "torchvision":
        torch = metadata.version("torch").partition("+")[0]
        major, minor = (*torch.split("."), "0", "0")[:2]
        if major == "2" and minor.isdigit():
            fitting = f"0.{int(minor) + TORCHVISION_OFFSET}.*"
            return f"pip install 'torchvision=={fitting}', which is made for torch {torch}; {unneeded}"
    return f"pip install --force-reinstall {name}; {unneeded}"


_lock = threading.Lock()
_inside = 0
_to_the_end = False
_caller_filters: warnings.catch_warnings[None] | None = None


@contextmanager
def ignoring_warnings() -> Iterator[None]:
    """Shows and raises no warning inside the block, whatever the caller's filters are; also a decorator.

    Python's filters are those of the whole process. Several threads may be inside: the last one out restores them.
    """
    global _inside, _caller_filters
    with _lock:
        if _inside == 0:
            _caller_filters = warnings.catch_warnings(action="ignore")
            _caller_filters.__enter__()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _caller_filters is not None:
                _caller_filters.__exit__(None, None, None)


def ignore_all_warnings() -> None:
    """Ignores warnings until the end of this process, which runs a command or a part of one, and no caller's code."""
    global _to_the_end
    _to_the_end = True
    warnings.simplefilter("ignore")


def silence_loggers() -> None:
    """Drops the warnings that libraries log, in a process that ignores all warnings; elsewhere loggers are the
    caller's.

    Called where libraries are imported: a command that needs none does not wait for `logging`.
    """
    if _to_the_end:
        import logging

        logging.disable(logging.WARNING)
