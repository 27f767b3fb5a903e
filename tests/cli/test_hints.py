"""Other tools' commands and options lead to ours."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dprecipe.cli.hints import _COMMANDS, _OPTIONS, hint_at_argument, hint_at_command, hint_at_option
from dprecipe.cli.main import COMMANDS
from dprecipe.recipe.vocabulary import list_every_key

RUN = ("--set", "--out", "--resume", "--rehearse", "--data-root")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--dry-run", "--rehearse"),
        ("--config", "dprecipe run recipe.yaml"),
        ("--output_dir", "--out FOLDER"),
        ("--epochs", "--set training.epochs=…"),
        ("--lr", "--set training.optimizer.lr=…"),
        ("--batch-size", "--set mechanism.sampling.batch_size=…"),
        ("--target-epsilon", "--set budget.epsilon=…"),
        ("--noise-multiplier", "--set mechanism.noise.multiplier=…"),
        ("--max-grad-norm", "--set mechanism.clip.norm=…"),
        ("--seed", "--set runtime.seed=…"),
        ("--gpus", "--set runtime.processes=…"),
        ("--fp16", "--set runtime.precision=…"),
        ("--secure-mode", "cryptographic generator"),
        ("--save-steps", "checkpoint"),
        ("--wandb", "runtime.loggers"),
    ],
)
def test_an_option_of_another_tool_leads_to_ours(option: str, hint: str) -> None:
    found = hint_at_option(option, "run", RUN)
    assert found is not None
    assert hint in found
    for path in re.findall(r"--set ([\w.]+)=", found):
        assert path in {known.path for known in list_every_key()}


def test_no_hint_names_what_a_command_does_not_have() -> None:
    assert hint_at_option("--epochs", "verify", ("--policy",)) is None
    assert hint_at_option("--output", "validate", ("--set",)) is None
    assert hint_at_option("--bogus", "run", RUN) is None
    assert hint_at_argument("budget.epsilon=2", ("--policy",)) is None
    assert hint_at_command("bogus", COMMANDS) is None


def test_an_override_needs_set() -> None:
    assert hint_at_argument("+budget.epsilon=2", RUN) == "write --set budget.epsilon=2"
    assert hint_at_argument("recipe.yaml", RUN) is None


def test_a_pattern_that_the_shell_has_replaced_needs_quotes() -> None:
    assert "in quotes" in str(hint_at_argument("tx-2.csv", ("--from", "--public")))


def test_commands_of_other_tools_lead_to_ours() -> None:
    assert not _COMMANDS.keys() & COMMANDS.keys()
    assert set(_COMMANDS.values()) <= COMMANDS.keys()
    assert hint_at_command("train", COMMANDS) == "write dprecipe run"
    assert hint_at_command("visits.yaml", COMMANDS) == "say what to do with it: dprecipe validate visits.yaml"
    assert all(hint_at_option(f"--{name}", "run", (*RUN, "--format")) for name in _OPTIONS)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("run --dry-run x.yaml", "--rehearse"),
        ("run x.yaml training.epochs=5", "write --set training.epochs=5"),
        ("train x.yaml", "write dprecipe run"),
    ],
)
def test_the_hint_is_in_the_message(line: str, hint: str) -> None:
    command = [sys.executable, "-m", "dprecipe", *line.split()]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert hint in " ".join(ended.stderr.split())
