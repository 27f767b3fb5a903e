"""A fifth mechanism is one folder and one line: `examples/output_perturbation` goes the whole way, as a user takes it.

It is registered in processes of its own alone: this one's language stays as it is.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.release.untrusted import to_bytes

ROOT = Path(__file__).parents[2]
FIFTH = """
import output_perturbation
from dprecipe.contract import table
table.register(output_perturbation.MECHANISM)
"""
"""All that is added to the program."""
MAIN = "from dprecipe.cli.main import main\nmain()\n"
SIZE, L2, EPSILON, DELTA = 1438, 0.05, 4.0, 1e-6
"""Of its starter recipe on digits."""


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    return subprocess.run(
        [sys.executable, "-c", FIFTH + code, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def dprecipe(*words: str | Path, code: int = 0) -> str:
    """What a command says; `code` is its exit code."""
    done = python(MAIN, *map(str, words))
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its starter recipe; read only."""
    path = tmp_path_factory.mktemp("fifth") / "digits.yaml"
    dprecipe("init", path, "--mechanism", "output_perturbation")
    return path


@pytest.fixture(scope="module")
def run(recipe: Path) -> Path:
    """The folder of a finished run; read only."""
    out = recipe.parent / "run"
    assert "accuracy" in dprecipe("run", recipe, "--out", out)
    return out


def predicate(run: Path) -> Any:
    return json.loads((run / "release" / "certificate.json").read_text("utf-8"))["predicate"]


def ledger_types(run: Path) -> list[str]:
    return [json.loads(line)["type"] for line in (run / "private" / "ledger.jsonl").read_text("utf-8").splitlines()]


def closed_form(pure: float, delta: float) -> float:
    """ε at δ of randomised response with odds exp(`pure`) of the truth: δ(ε) = (e^pure - e^ε) / (1 + e^pure)."""
    return math.log(math.exp(pure) - delta * (1 + math.exp(pure)))


def test_the_package_does_not_know_it() -> None:
    files = [path for path in (ROOT / "dprecipe").rglob("*") if path.suffix in (".py", ".toml")]
    assert len(files) > 250
    assert [path for path in files if "output_perturbation" in path.read_text("utf-8")] == []


def test_its_plan_spends_what_the_closed_form_gives(recipe: Path) -> None:
    assert "no findings" in dprecipe("validate", recipe)
    planned = json.loads(dprecipe("plan", recipe, "--format", "json"))
    (event,) = planned["events"]
    assert event == {"kind": "noisy_minimum", "count": 1, "noise_multiplier": event["noise_multiplier"]}
    due = closed_form(1 / event["noise_multiplier"], DELTA)
    assert due <= planned["guarantee"]["epsilon"] <= due * (1 + 2e-5)
    assert 0.9998 * EPSILON < planned["guarantee"]["epsilon"] <= EPSILON
    assert planned["solved"] == {"mechanism.noise_multiplier": event["noise_multiplier"]}
    given = json.loads(
        dprecipe(
            *("plan", recipe, "--format", "json", "--set", "budget.epsilon=auto"),
            *("--set", "mechanism.noise_multiplier=2.0", "--set", "budget.delta=1e-9"),
        )
    )
    assert given["guarantee"]["epsilon"] == pytest.approx(closed_form(0.5, 1e-9), rel=2e-5)


@pytest.mark.slow
def test_its_release_verifies_and_states_the_closed_form(run: Path) -> None:
    assert dprecipe("verify", run / "release").startswith("verified")
    stated = predicate(run)
    multiplier = stated["events"]["run_length"][0]["noise_multiplier"]
    moved = 2 * math.sqrt(2) / (SIZE * L2)
    assert moved < stated["mechanism"]["sensitivity"] < 1.001 * moved
    assert stated["mechanism"]["noise_scale"] == pytest.approx(multiplier * stated["mechanism"]["sensitivity"])
    assert [row["name"] for row in stated["accounting"]][-1] == "dp_accounting.pld"
    assert stated["accounting"][-1]["epsilon"] == pytest.approx(stated["claim"]["epsilon"], abs=2e-4)
    assert ledger_types(run) == ["open", "reserve", "settle", "close"]
    page = (run / "release" / "report.html").read_text("utf-8")
    assert "The minimum" in page
    assert "noise of density ∝ exp(-‖b‖" in page
    assert "lipschitz" in page


WRONG: dict[str, tuple[str, str, str]] = {
    "two unknowns": ("epsilon: 4.0", "epsilon: auto", "R302"),
    "not convex": ("kind: softmax_regression, bias: false, l2: 0.05", "kind: mlp, hidden: [8]", "P165"),
    "no regulariser": ("l2: 0.05", "l2: 0.0", "P165"),
    "no bound": ("clip_features: {norm: 1.0}", "scale: {mean: 0.5, std: 0.5}", "P164"),
    "another relation": ("replace_one", "add_or_remove_one", "P169"),
    "training": ("budget:", "training: {epochs: 3}\nbudget:", "R304"),
}


@pytest.mark.slow
def test_what_nothing_is_proved_of_is_refused(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text("utf-8")
    for name, (before, after, _) in WRONG.items():
        assert before in text
        (tmp_path / f"{name}.yaml").write_text(text.replace(before, after), encoding="utf-8")
    dprecipe("init", tmp_path / "flipped.yaml", "--mechanism", "output_perturbation", "--data", "idx")
    text, clip = (tmp_path / "flipped.yaml").read_text("utf-8"), "    - clip_features: {norm: 1.0}\n"
    assert clip in text
    (tmp_path / "flipped.yaml").write_text(text.replace(clip, f"{clip}    - flip: {{}}\n"), encoding="utf-8")
    files = sorted(tmp_path.iterdir())
    found = json.loads(python(MAIN, "validate", "--format", "json", *map(str, files)).stdout)["findings"]
    codes = {(Path(finding["file"]).stem, finding["code"]) for finding in found if finding["severity"] == "error"}
    assert codes == {*((name, code) for name, (_, _, code) in WRONG.items()), ("flipped", "P164")}
    spent = dprecipe("plan", recipe, "--set", "mechanism.noise_multiplier=0.1", code=3)
    assert "P102" in spent


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "less noise": (lambda p: p["mechanism"].update(noise_scale=1e-6), "mechanism.noise_scale"),
    "a smaller claim": (lambda p: p["claim"].update(epsilon=3.0), "claim.epsilon"),
    "another event": (lambda p: p["events"]["run_length"][0].update(noise_multiplier=1.0), "events.run_length.0"),
}


EACH = """
import sys
from pathlib import Path
from dprecipe.faults import CertificateInvalid
from dprecipe.release.verify import verify
for path in sys.argv[1:]:
    try:
        verify(Path(path))
    except CertificateInvalid as error:
        print(Path(path).name, *error.failures, sep=chr(9))
"""


@pytest.mark.slow
def test_a_changed_certificate_is_refused(run: Path, tmp_path: Path) -> None:
    for name, (change, _) in CHANGES.items():
        release = shutil.copytree(run / "release", tmp_path / name)
        content = json.loads((release / "certificate.json").read_text("utf-8"))
        change(content["predicate"])
        (release / "certificate.json").write_bytes(to_bytes(content))
    done = python(EACH, *(str(tmp_path / name) for name in CHANGES))
    found = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert found.keys() == CHANGES.keys(), done.stderr
    assert all(place in found[name] for name, (_, place) in CHANGES.items())


KILLED = """
import os, signal
from output_perturbation.train import run
from dprecipe.training.run.attempt import Attempt

def killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

run.probe = lambda plan, probed=run.probe: (probed(plan), setattr({owner}, {name!r}, killed))[0]
"""
"""Of its own program nothing but where it dies, once it was tried."""
MOMENTS = {
    "before its noise": ("run", "draw_spherical_noise", ["open", "reserve", "open", "carry", "settle", "close"]),
    "before its release": ("Attempt", "publish", ["open", "reserve", "settle", "close", "open", "close"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_and_spends_once(moment: str, recipe: Path, tmp_path: Path) -> None:
    owner, name, due = MOMENTS[moment]
    out = tmp_path / "run"
    died = python(KILLED.format(owner=owner, name=name) + MAIN, "run", str(recipe), "--out", str(out))
    assert died.returncode == -9, died.stderr
    assert not (out / "release").exists()
    dprecipe("run", recipe, "--out", out, "--resume")
    assert ledger_types(out) == due
    assert predicate(out)["events"]["total"] == 1
    assert predicate(out)["claim"]["epsilon"] <= EPSILON  # and the run has verified its release


LAW = """
import json
import numpy as np
from scipy import stats
from output_perturbation.events import NoisyMinimum
from output_perturbation.plan import OutputPerturbationPlan
from output_perturbation.train.run import draw_spherical_noise, minimise, read_rows
from dprecipe.data.records import Records
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants, cross_check, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.recipe.read import read

relation, orders, found = Neighbouring.REPLACE_ONE, [1.1, 1.5, 2.0, 8.0, 64.0], {}
for multiplier in (0.1, 1.0, 20.0):
    pure = 1 / multiplier
    curve = NoisyMinimum(multiplier).rdp(orders, relation)
    assert (curve <= np.minimum(pure, np.array(orders) * pure**2 / 2)).all()
one, sums = Charge(NoisyMinimum(2.0), 1), Charge(Gaussian(8.0), 3)
for name, charges in {"one": [one], "many": [Charge(one.event, 20)], "company": [one, sums]}.items():
    found[name] = [
        accountants.epsilon(charges, 1e-5, relation, "pld"), accountants.epsilon(charges, 1e-5, relation, "rdp"),
        cross_check.ask_library(charges, 1e-5, relation).epsilon,
    ]
found["unknown"] = accountants.epsilon([one], 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "pld") == float("inf")
found["blanked"] = accountants.epsilon([one], 1e-5, Neighbouring.ZERO_OUT_ONE, "pld")
stream, (count, draws) = Secrets().stream("noise", 0), (30, 20_000)
noise = np.array([draw_spherical_noise(0.5, stream, count) for _ in range(draws)])
norms = np.linalg.norm(noise, axis=1)
found["norms"] = stats.kstest(norms / 0.5, stats.gamma(count).cdf).statistic
along = (noise[:, 0] / norms + 1) / 2
found["direction"] = stats.kstest(along, stats.beta((count - 1) / 2, (count - 1) / 2).cdf).statistic

import sys
own = plan(read(sys.argv[1])).as_plan_of(OutputPerturbationPlan)
rows = np.random.default_rng(0).standard_normal((own.size, 64))
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
rows[:] = rows[0] * 0.01  # little weighs against the record that is replaced
labels = np.arange(own.size) % 10
one, other = rows.copy(), rows.copy()
one[0], other[0] = rows[0] * 100, -rows[0] * 100
ends = [minimise(own, x, labels, 10) for x in (one, other)]
found["moved"] = float(np.linalg.norm(ends[0] - ends[1])) / own.sensitivity
odd = np.full((4, 64), 1e38, np.float32)
odd[1, 0], odd[2, 0] = np.nan, np.inf
read_ND, _ = read_rows(own, Records(odd, np.zeros(4, np.int64)))
found["lengths"] = np.linalg.norm(read_ND, axis=1).tolist()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_its_event_composes_and_its_noise_is_its_distribution(recipe: Path) -> None:
    done = python(LAW, str(recipe))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("one", "many", "company"):
        pld, rdp, library = found[name]
        assert pld <= rdp * (1 + 1e-9)
        assert pld == pytest.approx(library, rel=1e-3, abs=2e-4)
    assert found["one"][0] == pytest.approx(closed_form(0.5, 1e-5), rel=1e-5)
    assert found["one"][0] < found["company"][0]
    assert found["many"][0] < 20 * 0.5
    assert found["unknown"]
    assert found["blanked"] == found["one"][0]
    for name in ("norms", "direction"):
        assert found[name] < 3.3 / math.sqrt(20_000), name  # a sound generator passes it once in a billion times
    assert 0.3 < found["moved"] <= 1
    assert found["lengths"] == pytest.approx([1.0, 0.0, 0.0, 1.0], rel=1e-12)
