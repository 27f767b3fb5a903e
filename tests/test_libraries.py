"""A library that is broken, though no recipe asks for it, is named with the command that mends it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

from dprecipe import libraries
from dprecipe.faults import RunFailed
from dprecipe.libraries import importing_libraries, leaving_out

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

RECIPES = Path(__file__).parents[1] / "recipes"
BROKEN = {
    "torchvision": "import torch\ntorch.library.register_fake('torchvision::nms')(lambda: None)\n",
    "torchmetrics": "raise OSError('libcublas.so.12: cannot open shared object file')\n",
    "lightning_utilities": "raise OSError('libcublas.so.12: cannot open shared object file')\n",
}


@pytest.mark.parametrize(
    ("frozen", "is_own", "expected"), [(0, False, ["freeze", "unfreeze"]), (7, False, []), (7, True, ["freeze"])]
)
def test_what_imports_made_counts_as_old_or_stays_in_a_process_of_its_own(
    frozen: int, is_own: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another program has frozen stays so."""
    asked: list[str] = []
    monkeypatch.setattr(libraries, "_is_own_process", is_own)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: asked.append("unfreeze"))
    with importing_libraries():
        assert not gc.isenabled()
        assert asked == []
        monkeypatch.setitem(sys.modules, "a_module_of_this_test", sys)
    assert gc.isenabled()
    assert asked == expected
    with importing_libraries():
        pass
    assert asked == expected, "a block that imports nothing leaves all as it was"


def test_collection_is_on_again_after_a_failed_import_and_stays_off_where_it_was() -> None:
    with pytest.raises(RunFailed), importing_libraries():
        import_module("torch").absent_thing  # noqa: B018
    assert gc.isenabled()
    gc.disable()
    try:
        with importing_libraries():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("is_own", [False, True])
def test_a_library_is_left_out_in_a_process_of_its_own(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is there again afterwards; what has been imported stays there."""
    (tmp_path / "of_no_use.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(libraries, "_is_own_process", is_own)
    with pytest.raises(ImportError) if is_own else nullcontext(), leaving_out("of_no_use", "numpy"):
        assert import_module("numpy") is sys.modules["numpy"]
        import_module("of_no_use")
    assert import_module("of_no_use") is sys.modules.pop("of_no_use")


def run_beside(folder: Path, package: str, *command: str) -> subprocess.CompletedProcess[str]:
    """With a package of this name that raises when it is imported, as a build for another torch does."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(BROKEN[package], encoding="utf-8")
    info = folder / f"{package}-0.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.99.0\n", encoding="utf-8")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n", encoding="utf-8")
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )


@pytest.mark.slow
def test_a_broken_library_is_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    done = run_beside(
        tmp_path,
        "lightning_utilities",
        *("-m", "dprecipe", "run", str(RECIPES / "quickstart.yaml"), "--out", str(tmp_path / "run")),
    )
    assert done.returncode == 4
    assert "error: lightning_utilities can't be imported" in done.stderr
    assert "pip uninstall lightning_utilities" in done.stderr
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torchvision", "torchmetrics"])
def test_a_command_runs_beside_broken_libraries_that_it_does_not_need(tmp_path: Path, package: str) -> None:
    command = ("run", str(RECIPES / "quickstart.yaml"), "--out", str(tmp_path / "run"))
    done = run_beside(tmp_path, package, "-m", "dprecipe", *command, "--set", "training.steps=2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "release").is_dir()


FROM_PYTHON = f"""
import dprecipe
from dprecipe.faults import RunFailed
plan = dprecipe.plan(dprecipe.load({str(RECIPES / "quickstart.yaml")!r}))
try:
    dprecipe.run(plan, "run")
except RunFailed as fault:
    print(fault.message, fault.remedy, sep="\\n")
"""


@pytest.mark.parametrize(
    ("package", "message", "remedy"),
    [
        pytest.param(
            "torchvision",
            "torchvision can't be imported (RuntimeError: operator torchvision::nms does not exist",
            "pip install 'torchvision==0.{}.*'",
            marks=pytest.mark.slow,
        ),
        ("torchmetrics", "torchmetrics can't be imported (OSError: libcublas.so.12", "pip uninstall torchmetrics"),
    ],
)
def test_from_python_it_is_a_fault_too(tmp_path: Path, package: str, message: str, remedy: str) -> None:
    done = run_beside(tmp_path, package, "-c", FROM_PYTHON)
    assert done.stdout.startswith(message)
    assert remedy.format(int(torch.__version__.split(".")[1]) + 15) in done.stdout
    assert done.stderr == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_mechanisms_that_need_no_trainer_import_none(tmp_path: Path) -> None:
    code = """
import sys
from dprecipe.contract.table import mechanism_of
mechanism_of("pnsgd").import_runner(), mechanism_of("pate").import_runner()
print(sorted({"lightning", "torchmetrics", "torchvision"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_a_fault_of_a_mechanism_from_elsewhere_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no library: reinstalling it would mend nothing."""
    (tmp_path / "mechanism_of_ours.py").write_text("from dprecipe.faults import NoSuchName\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="NoSuchName"), importing_libraries(package="mechanism_of_ours.train"):
        import_module("mechanism_of_ours")
    with pytest.raises(RunFailed, match="mechanism_of_ours can't be imported"), importing_libraries():
        import_module("mechanism_of_ours")
