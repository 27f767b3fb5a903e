"""Lightning is imported without torchmetrics by a command, and as it is by another program."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

FIT = """
import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from lightning.pytorch import LightningModule

class Learning(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        {logged}
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
lightning.Trainer(max_steps=2, accelerator="cpu", **quiet).fit(Learning(), torch.ones(4, 1, 2))
"""
NEEDS_MORE = """
import importlib.metadata
import sys

real = importlib.metadata.version

def version(name):
    if name == "torchmetrics" and sys._getframe(1).f_globals["__name__"].startswith("dprecipe"):
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)

importlib.metadata.version = version
"""
OWN = "from dprecipe.libraries import own_process\nown_process()\n"
IMPORTED = "import sys\nfrom dprecipe.training.program.trainer_library import lightning\n"
STATE = "print('torchmetrics.functional' in sys.modules)\n"
AFTERWARDS = "import torchmetrics\nprint(torchmetrics.MeanMetric.__name__)\n"
LOGGED = FIT.format(logged="self.log('x', 1.0)")


def run_code(*parts: str) -> list[str]:
    """The lines that a process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "".join(parts)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_command_trains_without_metrics() -> None:
    assert run_code(OWN, IMPORTED, STATE, FIT.format(logged="")) == ["False"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "has_metrics"),
    [(OWN, False), (OWN + "import torchmetrics\n", True), ("", True), (NEEDS_MORE + OWN, True)],
    ids=["command", "command that has it", "other program", "more is needed"],
)
def test_metrics_are_imported_where_others_may_use_them(before: str, has_metrics: bool) -> None:
    fit = LOGGED if has_metrics else ""
    assert run_code(before, IMPORTED, STATE, fit, AFTERWARDS) == [str(has_metrics), "MeanMetric"]
