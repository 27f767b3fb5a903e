"""How long `dprecipe validate` and `dprecipe plan` take as whole processes, against a bare interpreter.

Rounds alternate A B A B …, so that a machine whose speed drifts gives honest ratios. Run: python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 11
COMMAND = [sys.executable, "-c", "from dprecipe.cli.main import main; main()"]
CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "dprecipe --help": [*COMMAND, "--help"],
    "dprecipe validate, noise auto": [*COMMAND, "validate", "recipes/mnist-dpsgd.yaml"],
    "dprecipe validate, noise fixed": [*COMMAND, "validate", "benchmarks/fixed.yaml"],
    "dprecipe plan quickstart": [*COMMAND, "plan", "recipes/quickstart.yaml"],
    "dprecipe plan mnist-dpsgd": [*COMMAND, "plan", "recipes/mnist-dpsgd.yaml"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for command in CASES.values():
        seconds(command)  # warms the page cache
    for _ in range(ROUNDS):
        for name, command in CASES.items():
            times[name].append(seconds(command))
    print(f"{'seconds, ' + str(ROUNDS) + ' rounds':32} {'min':>6} {'median':>6} {'max':>6}")
    for name, measured in times.items():
        print(f"{name:32} {min(measured):6.2f} {statistics.median(measured):6.2f} {max(measured):6.2f}")


if __name__ == "__main__":
    main()
