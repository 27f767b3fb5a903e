"""Bugs that are planted in a copy of the program are caught, each by the cheapest depth of its catalogue entry."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text
from dprecipe.training.audit.run import audit, make_request
from tests.planted.bug import Bug, Edit
from tests.planted.catalogue import BUGS
from tests.planted.disarmed import disarm_probe
from tests.planted.recipes import RECIPES, WITH_CANARIES
from tests.planted.workshop import ACCUSED, PACKAGE, Workshop


def test_every_bug_has_its_places_in_the_program_and_compiles() -> None:
    for bug in BUGS:
        for path, text in bug.texts(PACKAGE).items():
            assert text != (PACKAGE / path).read_text(encoding="utf-8"), bug.name
            compile(text, path, "exec", dont_inherit=True)


def test_bugs_have_names_of_their_own_and_reasons() -> None:
    assert len(BUGS) >= 25
    assert Counter(bug.name for bug in BUGS).most_common(1)[0][1] == 1
    assert all(bug.why and bug.recipe in RECIPES for bug in BUGS)


def test_the_page_says_of_every_bug_what_finds_it() -> None:
    page = (PACKAGE.parent / "docs" / "project" / "planted.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| (`.*) \|$", page, re.MULTILINE)
    assert Counter(re.findall(r"`(\w+)`", " ".join(rows))) == Counter(bug.name for bug in BUGS)
    assert f"holds {len(BUGS)} changes" in page


def test_an_edit_needs_its_text_exactly_once() -> None:
    edit = Edit("a.py", "scale", "0.5 * scale")
    assert edit.apply("x = scale") == "x = 0.5 * scale"
    for text in ("x = 1", "scale = scale"):
        with pytest.raises(ValueError, match=r"a\.py: [02] places"):
            edit.apply(text)


@pytest.mark.slow
def test_every_recipe_of_the_catalogue_has_a_plan() -> None:
    used = {bug.recipe for bug in BUGS}
    assert used == set(RECIPES)
    for name in used:
        assert plan(read_text(RECIPES[name])).events, name


SOUND = ("moments", "pate")
"""The workshop by itself accuses nobody; other sound programs are in the tests of each audit."""
AUDITS, MAX_ALARMS = 8, 3
"""Number of audits at 95 % confidence, and of alarms: sound programs raise more with a probability below 0.04 %."""


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_every_bug_of_the_short_list_is_caught(part: int, tmp_path: Path) -> None:
    bugs = [bug for bug in BUGS if bug.always][part::2]
    if "DPRECIPE_ALL_TESTS" not in os.environ:
        bugs = bugs[::2]
    with Workshop(tmp_path) as workshop:
        missed = {bug.name: output for bug in bugs if (output := _try(workshop, bug))}
        for recipe in SOUND[part::2]:
            outcome = workshop.audit(recipe, "program")
            if outcome.code != 0:
                missed[f"sound {recipe}"] = outcome.output
    assert not missed, "\n".join(f"{name}: {output}" for name, output in missed.items())


@pytest.mark.slow
def test_half_the_noise_is_inconsistent_with_the_specification_of_one_run(tmp_path: Path) -> None:
    """μ is twice what is specified: 11 standard errors of 1,000 canaries."""
    (halved,) = [bug for bug in BUGS if bug.name == "noise_halved"]
    with Workshop(tmp_path) as workshop:
        sound = workshop.run_with_canaries(WITH_CANARIES)["specification"]
        with workshop.planted(disarm_probe(halved)):
            faulty = workshop.run_with_canaries(WITH_CANARIES)["specification"]
    assert sound["p_value"] > 1e-6
    assert (faulty["consistent"], faulty["specified_mu"]) == (False, sound["specified_mu"])
    assert faulty["p_value"] < 1e-6


@pytest.mark.slow
def test_sound_programs_are_rarely_accused() -> None:
    alarms = 0
    for recipe in ["linear", "adaptive", "dealt", "encoded"] * (AUDITS // 4):
        planned = plan(read_text(RECIPES[recipe]))
        done = audit(planned, make_request(planned, ("steps",), steps=200)).audit
        alarms += bool(done.failed)
    assert alarms <= MAX_ALARMS


def _try(workshop: Workshop, bug: Bug) -> str:
    """Nothing, if the bug is caught where it should be; else what the command said."""
    with workshop.planted(bug):
        outcome = (
            workshop.rehearse(bug.recipe) if bug.caught_by == "probe" else workshop.audit(bug.recipe, bug.caught_by)
        )
    return "" if outcome.code == ACCUSED and outcome.accused_by else f"exit code {outcome.code}: {outcome.output}"
