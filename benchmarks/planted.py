"""Planted bugs (`tests/planted`): which depth catches each, with processor seconds; and sound programs, audited often.

For each bug, the program with it makes the checks of every run (`its own checks`); then, with these checks disarmed, so
that the audit is alone, it is audited at each depth that its mechanism has. `--sound N` audits sound recipes N times in
all at depth `steps` or `releases`, at 95 % confidence and small sizes, and counts alarms. `--canaries N` runs the
quickstart with 1,000 canaries N times for each bug, and counts what each statement about one run says.
Run: OMP_NUM_THREADS=1 python benchmarks/planted.py [--only NAME …] [--depths program steps] [--sound 400]
     [--canaries 40 --only noise_halved …]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dprecipe.contract.table import mechanism_of
from dprecipe.planning.make import plan
from dprecipe.privacy.audit.results import Depth
from dprecipe.recipe.read import read_text
from tests.planted.bug import Bug
from tests.planted.catalogue import BUGS
from tests.planted.disarmed import disarm_probe
from tests.planted.recipes import RECIPES, WITH_CANARIES
from tests.planted.workshop import Outcome, Workshop

SOUND_PROGRAM = Bug("none", "linear", "", ())
STEPS, RELEASES = 2000, 2000
SOUND = ("linear", "layers", "per_layer", "adaptive", "dealt", "fixed_size", "laplace", "encoded", "pnsgd", "pate")


def table(bugs: Sequence[Bug], depths: Sequence[Depth]) -> None:
    """Print a row for each bug."""
    print("| bug | recipe | its own checks |", " | ".join(depths), "|")
    print("|---|---|---|" + "---|" * len(depths))
    missed = []
    with tempfile.TemporaryDirectory() as folder, Workshop(Path(folder)) as workshop:
        for bug in bugs:
            kind = plan(read_text(RECIPES[bug.recipe])).mechanism
            known = [depth for depth in depths if depth in mechanism_of(kind).audit_depths]
            with workshop.planted(bug):
                cells = [_describe(workshop.rehearse(bug.recipe))]
            for depth in depths:
                if depth not in known:
                    cells.append("")
                    continue
                sizes = {"steps": ("--steps", str(STEPS)), "releases": ("--releases", str(RELEASES))}
                with workshop.planted(disarm_probe(bug)):
                    cells.append(_describe(workshop.audit(bug.recipe, depth, *sizes.get(depth, ()))))
            print(f"| `{bug.name}` | {bug.recipe} |", " | ".join(cells), "|", flush=True)
            if not any(cell.startswith("caught") for cell in cells):
                missed.append(bug.name)
    print(f"\n{len(bugs)} bugs, {len(missed)} of them caught by nothing: {', '.join(missed) or 'none'}")


def _describe(outcome: Outcome) -> str:
    names = ", ".join(f"`{name.partition(': ')[2]}`" for name in outcome.accused_by[:2] if ": " in name)
    if outcome.accused_by:
        return f"caught {names} {outcome.seconds:.1f} s".replace("  ", " ")
    return f"no, {outcome.seconds:.1f} s" if outcome.code == 0 else f"crashed, {outcome.seconds:.1f} s"


def run_canaries(count: int, names: Sequence[str]) -> None:
    """Print in how many of `count` runs, of a program without a bug and with each of these, each statement accuses."""
    print("| bug | any program | implied ε above the claim | inconsistent with the specification | mean difference |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Workshop(Path(folder)) as workshop:
        for bug in (SOUND_PROGRAM, *(bug for bug in BUGS if bug.name in names)):
            with workshop.planted(disarm_probe(bug)):
                seen = [workshop.run_with_canaries(WITH_CANARIES) for _ in range(count)]
            accused = (
                sum(told["bound"]["refuted"] for told in seen),
                sum(told["bound"]["lower"] > told["bound"]["claimed"] for told in seen),
                sum(not told["specification"]["consistent"] for told in seen),
            )
            apart = statistics.mean(told["specification"]["evidence"]["difference"] for told in seen)
            cells = " | ".join(f"{number} of {count}" for number in accused)
            print(f"| `{bug.name}` | {cells} | {apart:.3g} |", flush=True)


def audit_sound(count: int) -> None:
    """Print how many of `count` audits of sound programs raised an alarm."""
    from dprecipe.training.audit.run import audit, make_request

    alarms, failed = 0, 0
    for number in range(count):
        planned = plan(read_text(RECIPES[SOUND[number % len(SOUND)]]))
        depth: Depth = "steps" if "steps" in mechanism_of(planned.mechanism).audit_depths else "releases"
        done = audit(planned, make_request(planned, (depth,), 400, 400, 0.95)).audit
        alarms += any(bound.refuted for bound in done.bounds)
        failed += any(not test.passed for test in done.tests)
    print(f"{count} audits of sound programs: {alarms} refuted a claim at 95 % confidence, {failed} failed a test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="bugs or recipes")
    parser.add_argument("--depths", nargs="+", default=["program", "steps", "releases"], choices=get_args(Depth))
    parser.add_argument("--sound", type=int, default=0, metavar="N")
    parser.add_argument("--canaries", type=int, default=0, metavar="N", help="N runs with canaries of each bug")
    given = parser.parse_args()
    if given.canaries:
        run_canaries(given.canaries, given.only)
        return
    if given.sound:
        audit_sound(given.sound)
        return
    table([bug for bug in BUGS if not given.only or {bug.name, bug.recipe} & set(given.only)], given.depths)


if __name__ == "__main__":
    main()
