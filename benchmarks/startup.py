"""How long `dprecipe validate` and `dprecipe plan` take as whole processes, against a bare `import pydantic, numpy`.

Rounds alternate A B A B …, so that a machine whose speed drifts gives honest ratios. Ratios are of processor time.

Run: python benchmarks/startup.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import sys

from figures import Spread, Usage, parser_of, ratio, run_checked, write_json

BARE = "python -c 'import pydantic, numpy'"
COMMAND = [sys.executable, "-m", "dprecipe"]
CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    BARE: [sys.executable, "-c", "import pydantic, numpy"],
    "dprecipe --help": [*COMMAND, "--help"],
    "dprecipe validate, noise auto": [*COMMAND, "validate", "recipes/mnist-dpsgd.yaml"],
    "dprecipe validate, noise fixed": [*COMMAND, "validate", "benchmarks/fixed.yaml"],
    "dprecipe plan quickstart": [*COMMAND, "plan", "recipes/quickstart.yaml"],
    "dprecipe plan mnist-dpsgd": [*COMMAND, "plan", "recipes/mnist-dpsgd.yaml"],
}


def main() -> None:
    given = parser_of(__doc__).parse_args()
    rounds = given.rounds or (5 if given.quick else 11)
    for command in CASES.values():
        run_checked(command)  # warms the page cache
    used: dict[str, list[Usage]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, command in CASES.items():
            used[name].append(run_checked(command))
    print(f"{f'seconds, {rounds} rounds':36} {'clock':24} processor")
    processor = {name: [each.processor for each in uses] for name, uses in used.items()}
    for name, uses in used.items():
        print(f"{name:36} {Spread.of([each.wall for each in uses])!s:24} {Spread.of(processor[name])}")
    ratios = {
        f"{name} / bare": ratio(times, processor[BARE]) for name, times in processor.items() if "dprecipe" in name
    }
    write_json(given.json, "startup", ratios, quick=given.quick)


if __name__ == "__main__":
    main()
