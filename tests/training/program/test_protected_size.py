"""A number of units that is protected: planned from a bound, divided by what was released, told nowhere."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

import dprecipe
from dprecipe import progress
from dprecipe.cli.run import run
from dprecipe.contract.plan import Plan
from dprecipe.data import records
from dprecipe.data.image_steps import Scattering
from dprecipe.data.paid.constants import CountConstants
from dprecipe.data.paid.stage import size_share
from dprecipe.data.schema import SizeBound, Step
from dprecipe.faults import CertificateInvalid, DataFault
from dprecipe.models.load import load
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.release.untrusted import to_bytes
from dprecipe.training.program import gather
from dprecipe.training.publish.publish import state_times
from dprecipe.training.steps.clipped_sums import ClippedSums
from dprecipe.training.steps.contract import NoisyStep
from dprecipe.training.steps.noisy_steps import NoisySteps

RECIPE = """\
recipe: dprecipe/v1
name: table
data:
  train:
    source: csv
    path: people.csv
    columns: {age: {kind: numeric, min: 0, max: 100}, gain: {kind: numeric, min: 0, max: 1000}}
    label: {column: rich, classes: 2}
  size: {max: 4000}
  preprocess:
    - dp_count: {share: 0.1}
    - dp_standardize: {columns: [age, gain], share: 0.1}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 400}
budget: {epsilon: 4.0, delta: 1e-5}
training:
  steps: 40
  optimizer: {kind: sgd, lr: 0.5}
"""
PEOPLE = 2039
"""No other number of the recipe, and none of what is released."""


def plan_of(root: Path, *overrides: str) -> Plan:
    return make_plan(read_text(RECIPE, str(root / "table.yaml"), overrides))


def write_people(path: Path, people: int) -> None:
    lines = ["age,gain,rich", *(f"{20 + n % 60},{(n * 7) % 1000},{int(n % 60 > 30)}" for n in range(people))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "overrides", [(), ("mechanism.clip={mode: adaptive, norm: 1.0}", "mechanism.noise.multiplier=2.0")]
)
def test_sums_are_divided_by_the_rate_times_the_released_number(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    plan = plan_of(tmp_path, *overrides)
    share = size_share(plan.data, [CountConstants(units=1000.0)])
    assert share == 0.25
    adaptive = bool(overrides)
    sums = ClippedSums(plan, torch.nn.Linear(2, 2))
    noisy = torch.arange(6.0 + adaptive, dtype=torch.float64)
    if adaptive:
        noisy[-1] = 25.0  # of 100 units 75 were within the norm: a share of 3/4, and the norm falls
    step = NoisyStep(0, plan.mechanism_plan.events[0].event, share)
    gradient, factor = sums.gradient(noisy.clone(), step)
    assert factor == 1.0
    torch.testing.assert_close(gradient, noisy[:6] / 100)  # 400 / 4000 of the 1,000 units that were released
    if adaptive:
        assert sums.figures()["clip_norm"] == pytest.approx(torch.tensor(-0.2 * 0.25).exp().item())


def test_a_file_without_units_or_with_more_than_the_bound_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for people in (0, 4001):
        write_people(tmp_path / "people.csv", people)
        with pytest.raises(DataFault, match=r"no record\b|no records, or more than the 4,000") as fault:
            gather.gather_records(plan, tmp_path)
        assert "4001" not in str(fault.value)
    for people in (1, PEOPLE, 4000):
        write_people(tmp_path / "people.csv", people)
        assert len(gather.gather_records(plan, tmp_path).prepared("train") or ()) == people


def test_the_plan_knows_a_bound_and_no_number(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert plan.data.size == SizeBound(max=4000)
    assert plan.mechanism_plan.sampling_rate == 0.1
    assert plan.length.steps_per_epoch == 10
    bound = make_plan(read_text(RECIPE.replace("{max: 4000}", "4000"), str(tmp_path / "table.yaml")))
    assert bound.guarantee.epsilon == plan.guarantee.epsilon  # as if there were as many units as the bound


@pytest.mark.slow
def test_a_run_tells_its_number_of_units_to_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on the screen nor in the release: the only number near it is the released one."""
    shares: list[float] = []
    honest = NoisySteps.start
    monkeypatch.setattr(NoisySteps, "start", lambda self: (shares.append(self.context.size_share), honest(self))[1])
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)  # a line of progress for each step, if there is any
    write_people(tmp_path / "people.csv", PEOPLE)
    (tmp_path / "table.yaml").write_text(RECIPE, "utf-8")
    assert run(tmp_path / "table.yaml", out=tmp_path / "run", data_root=tmp_path) == 0
    release, plan = tmp_path / "run" / "release", plan_of(tmp_path)
    stated = dprecipe.verify(release).statement.predicate
    assert (stated.sampling.size, stated.sampling.size_is_bound) == (4000, True)
    assert "a bound on the number of records, 4000" in stated.claim.not_protected[0]
    (count,) = (c for c in load(release).file.stages or () if isinstance(c, CountConstants))
    assert 0 < abs(count.units - PEOPLE) < 10 * plan.stages[0].noise_multiplier
    assert shares == [count.units / 4000]
    screen = "".join(capfd.readouterr())
    texts = [screen, *(path.read_text("utf-8", "replace") for path in release.iterdir() if path.is_file())]
    assert len(texts) > 4
    number = re.compile(rf"(?<![\d.]){PEOPLE}(?![\d.])|2,039")
    assert not [text[max(0, m.start() - 40) : m.end() + 40] for text in texts for m in [number.search(text)] if m]

    assert "step 1" not in screen
    ends = r"^completed: spent ε = \S+ of 4 at δ = 1e-05, no score \(data.test holds out no records\)$"
    assert re.search(ends, screen, re.MULTILINE)
    assert stated.provenance.started == stated.provenance.finished
    file = release / "certificate.json"
    content = json.loads(file.read_bytes())
    content["predicate"]["provenance"]["finished"] = "2099-01-01T00:00:00+00:00"
    file.write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid) as invalid:
        dprecipe.verify(release)
    assert any("tells of the number of units" in line for line in invalid.value.failures)


def test_the_end_of_a_run_that_hides_its_duration_is_its_start(tmp_path: Path) -> None:
    started = datetime(2026, 1, 1, tzinfo=UTC)
    hidden = plan_of(tmp_path)
    public = make_plan(read_text(RECIPE.replace("{max: 4000}", "4000"), str(tmp_path / "table.yaml")))
    assert (hidden.hides_duration, public.hides_duration) == (True, False)
    assert state_times(hidden, started) == ("2026-01-01T00:00:00+00:00",) * 2
    assert state_times(public, started)[1] > "2026-01-01T00:00:00+00:00"


def test_scattering_counts_private_records_in_no_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    images = np.zeros((9, 1, 8, 8), np.uint8)
    pending = (Step(scattering=Scattering(scales=2, angles=2)),)
    gathered = gather.Gathered({"train": records.Records(images, np.zeros(9, np.int64), None, pending)})
    for _ in range(2):  # once prepared, there is nothing to announce
        assert len(gathered.prepared("train") or ()) == 9
    assert capsys.readouterr().err == "computing features of images\n"
