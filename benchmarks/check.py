"""`make bench-check`: which ratios have moved beyond the range that `ratios.json` has seen.

Not a test: it measures (minutes), reports, and ends with 0. With `--strict` it ends with 1 where a ratio has grown
beyond its range or is gone, or a benchmark failed. Ratios are of our time to another program's: less is better. A range
is widened by 5 % on both sides, since rounds of one day understate it.

Run: python benchmarks/check.py [NAME ...] [--strict] [--measured FOLDER] [--update | --widen]
`--measured`: compare the files NAME.json of that folder, and measure nothing. `--update`: what was measured becomes the
table; look at the difference before you commit it. `--widen`: the same code was measured once more, and ranges grow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures import ROOT, table

TABLE = ROOT / "benchmarks" / "ratios.json"
CHECKED = ("accountants", "encoder", "endtoend", "engine", "noise", "pate", "pnsgd", "startup", "trainer")
MARGIN = 1.05
ORDER = ("slower", "gone", "faster", "new", "within")
FAILURES = ("slower", "gone")


class Verdict(NamedTuple):
    """One ratio, then and now."""

    benchmark: str
    ratio: str
    verdict: str
    """One of ORDER."""
    then: str
    now: str


def compare(known: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """Both by the name of a benchmark; those that were not measured are left out, and so are ratios that a quick
    measurement leaves out. The worst first."""
    verdicts = [each for name in measured for each in _compare(name, known.get(name, {}), measured[name])]
    return sorted(verdicts, key=lambda each: (ORDER.index(each.verdict), each.benchmark))


def _compare(benchmark: str, known: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[Verdict]:
    before, after = known.get("ratios", {}), measured["ratios"]
    for name, now in after.items():
        then = before.get(name)
        if then is None:
            verdict = "new"
        elif not now["median"] <= then["high"] * MARGIN:  # so that NaN is no pass
            verdict = "slower"
        else:
            verdict = "faster" if now["median"] < then["low"] / MARGIN else "within"
        yield Verdict(benchmark, name, verdict, "" if then is None else show(then), show(now))
    if not measured.get("quick"):
        for name in before.keys() - after.keys():
            yield Verdict(benchmark, name, "gone", show(before[name]), "")


def show(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.3g} ({spread['low']:.3g} to {spread['high']:.3g})"


def report(verdicts: Sequence[Verdict], known: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """In markdown: what moved, and how many did not."""
    moved = [each for each in verdicts if each.verdict != "within"]
    lines = []
    for name in measured:
        then, now = known.get(name), measured[name]
        if then is not None and then["machine"]["processor"] != now["machine"]["processor"]:
            there = f"{then['machine']['processor']}, {then['date']}, {then['commit']}"
            lines.append(f"{name}: the table is of another machine ({there}); ratios may differ for that alone")
    if moved:
        header = ("verdict", "benchmark", "ratio", "table", "now")
        rows = [(each.verdict, each.benchmark, each.ratio, each.then, each.now) for each in moved]
        lines.append(table(header, rows))
    lines.append(f"{len(verdicts) - len(moved)} of {len(verdicts)} ratios are within their range")
    return "\n".join(lines)


def update(known: dict[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The table with what was measured in its place; of a quick measurement, other ratios stay."""
    result = dict(known)
    for name, now in measured.items():
        kept = known.get(name, {}).get("ratios", {}) if now.get("quick") else {}
        entry = {key: now[key] for key in ("commit", "date", "machine")}
        result[name] = {**entry, "ratios": {**kept, **now["ratios"]}}
    return dict(sorted(result.items()))


def widen(known: dict[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The table with ranges that hold what was measured too; medians, and what is said of the machine, stay."""
    result = json.loads(json.dumps(known))
    for name in measured.keys() & result.keys():
        for ratio, now in measured[name]["ratios"].items():
            if (then := result[name]["ratios"].setdefault(ratio, now)) is not now:
                both = {"low": min(then["low"], now["low"]), "high": max(then["high"], now["high"])}
                result[name]["ratios"][ratio] = {**then, **both, "rounds": then["rounds"] + now["rounds"]}
    return update(result, {name: now for name, now in measured.items() if name not in result})


def measure(names: Sequence[str], folder: Path) -> list[str]:
    """Run the benchmarks; those that failed."""
    failed = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json"]
        done = subprocess.run([*command, str(folder / f"{name}.json")], cwd=ROOT, check=False, stdout=sys.stderr)
        if done.returncode:
            failed.append(name)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKED)}; all if none is given")
    parser.add_argument("--strict", action="store_true", help="end with 1 where a ratio has grown beyond its range")
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="compare what --json wrote there")
    parser.add_argument("--update", action="store_true", help="make what was measured the table")
    parser.add_argument("--widen", action="store_true", help="let the table's ranges hold what was measured")
    parser.add_argument("--table", type=Path, default=TABLE, metavar="FILE")
    given = parser.parse_args(arguments)
    names = given.names or CHECKED
    if unknown := set(names) - set(CHECKED):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(CHECKED)}")
    known = json.loads(given.table.read_text(encoding="utf-8")) if given.table.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.measured or Path(temporary)
        failed = [] if given.measured else measure(names, folder)
        files = {name: folder / f"{name}.json" for name in names}
        measured = {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.exists()}
    if not measured:
        print("nothing was measured", file=sys.stderr)
        return 1
    verdicts = compare(known, measured)
    print(report(verdicts, known, measured))
    for name in failed:
        print(f"{name} failed")
    if given.update or given.widen:
        changed = update(known, measured) if given.update else widen(known, measured)
        given.table.write_text(json.dumps(changed, indent=1) + "\n", encoding="utf-8")
    return int(given.strict and bool(failed or any(each.verdict in FAILURES for each in verdicts)))


if __name__ == "__main__":
    sys.exit(main())
