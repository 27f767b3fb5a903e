"""Modules from Python as people write them: built, passed to `dprecipe.run`, certified and verified, without tricks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

from torch import Tensor, nn  # noqa: E402

import dprecipe  # noqa: E402
from dprecipe.data.records import Records  # noqa: E402
from dprecipe.faults import PlanRefused, RunFailed  # noqa: E402
from dprecipe.models.load import load  # noqa: E402

LENGTH, VOCABULARY, SIZE = 12, 40, 300
RECIPE = f"""\
recipe: dprecipe/v1
name: own-module
data:
  train: {{source: npz, path: reviews.npz, shape: [{LENGTH}], classes: 2}}
  size: {SIZE}
model: {{kind: logistic_regression}}
mechanism:
  kind: dpsgd
  clip: {{norm: 1.0}}
  noise: {{family: gaussian, multiplier: auto}}
  sampling: {{scheme: poisson, batch_size: 64}}
budget: {{epsilon: 60.0, delta: 1e-4}}
training:
  steps: 80
  optimizer: {{kind: adam, lr: 0.02}}
release: {{report: false}}
"""


class Encoder(nn.Module):
    """A plain classifier of token numbers, its encoder layers at their defaults (dropout 0.1)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width, padding_idx=0), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.encoder(hidden, src_key_padding_mask=ids == 0)[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 12)
        self.lstm = nn.LSTM(12, 12, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(12, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(ids))[0].mean(1))


class WithMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        counts = attention_mask[..., None].float()
        mean = (self.tokens(input_ids) * counts).sum(1) / counts.sum(1).clamp(min=1)
        return self.head(nn.functional.dropout(mean, 0.2, self.training))


def distilbert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, dim=16, hidden_dim=32, n_layers=2, n_heads=2
    )
    module: nn.Module = transformers.DistilBertForSequenceClassification(config)
    return module


def reviews() -> tuple[np.ndarray, np.ndarray]:
    """Token numbers padded with 0; the class is whether a token of the upper half comes more often."""
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=SIZE)
    half = VOCABULARY // 2
    ids = generator.integers(1, half, (SIZE, LENGTH)) + (half - 1) * labels[:, None]
    ids[np.arange(LENGTH) >= generator.integers(4, LENGTH + 1, (SIZE, 1))] = 0
    return ids, labels


def plan_in(tmp_path: Path, **overrides: object):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    return dprecipe.plan(dprecipe.load(recipe, overrides={k.replace("_", ".", 1): v for k, v in overrides.items()}))


def train(tmp_path: Path, module: nn.Module, records: Records | None = None, **overrides: object):
    plan = plan_in(tmp_path, **overrides)
    return dprecipe.run(plan, tmp_path / "run", model=module, train=records or Records(*reviews()))


@pytest.mark.slow
@pytest.mark.parametrize("build", [Encoder, Recurrent, WithMask, distilbert], ids=lambda build: build.__name__)
def test_modules_on_token_numbers_learn_certify_verify_and_load(tmp_path: Path, build) -> None:
    torch.manual_seed(0)
    module = build()
    done = train(tmp_path, module)
    dprecipe.verify(done.release)
    torch.manual_seed(1)
    ids, labels = reviews()
    assert (load(done.release, module=build()).predict(ids) == labels).mean() > 0.65


@pytest.mark.slow
def test_fields_by_name(tmp_path: Path) -> None:
    ids, labels = reviews()
    records = Records.of_fields({"input_ids": ids, "attention_mask": ids != 0}, labels)
    torch.manual_seed(0)
    done = train(tmp_path, WithMask(), records)
    dprecipe.verify(done.release)
    assert (load(done.release, module=WithMask()).predict(ids) == labels).mean() > 0.65


def prepared(tmp_path: Path, module: nn.Module, records: Records | None = None, physical_batch: int = 32):
    from dprecipe.training.run.runner import PythonInputs, runner_of

    plan = plan_in(tmp_path, runtime_physical_batch=physical_batch)
    return runner_of(plan).prepare(plan, tmp_path, PythonInputs(module, records or Records(*reviews())))


@pytest.mark.parametrize(
    "build",
    [pytest.param(Encoder, marks=pytest.mark.slow), pytest.param(Recurrent, marks=pytest.mark.slow), WithMask],
    ids=lambda build: build.__name__,
)
def test_modules_on_token_numbers_pass_the_probe(tmp_path: Path, build) -> None:
    torch.manual_seed(0)
    program = prepared(tmp_path, build())
    assert all(check.passed for check in program.checks)
    assert "layers draw" in program.checks[0].measured
    sizes = next(check.measured for check in program.checks if check.id == "larger_batches")
    assert sizes.startswith("outputs in batches of 1 to 9, 15 to 17, 31 to 32") or "too slow" in sizes


@pytest.mark.slow
def test_a_module_that_decides_by_values_trains_record_by_record_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Deciding(Encoder):
        def forward(self, ids: Tensor) -> Tensor:
            kept = int((ids != 0).sum(1).max().item())  # as long as the longest of a batch
            return super().forward(ids[:, :kept])

    torch.manual_seed(0)
    program = prepared(tmp_path, Deciding(), physical_batch=8)
    assert all(check.passed for check in program.checks)
    said = capsys.readouterr().err
    assert "records go through the module one by one, which is slow: it decides by values of records" in said
    assert "test_modules.py" in said
    assert ".item())" in said


def test_a_table_that_shortens_its_rows_is_refused_with_what_to_write(tmp_path: Path) -> None:
    module = WithMask()
    module.tokens = nn.Embedding(VOCABULARY, 16, max_norm=1.0)
    with pytest.raises(PlanRefused) as caught:
        prepared(tmp_path, module)
    [finding] = caught.value.findings
    assert finding.code == "P123"
    assert "layer 'tokens' (Embedding)" in finding.message
    assert "max_norm=None" in finding.remedy


def test_a_module_that_fails_is_told_the_layer_and_the_line(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(5, 3)

    module = nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Flatten(), nn.Linear(48, 8), Odd())
    with pytest.raises(RunFailed) as caught:
        prepared(tmp_path, module)
    message = caught.value.message
    assert "in layer '3' (Odd), at test_modules.py:" in message
    assert "return x @ torch.ones(5, 3)" in message
