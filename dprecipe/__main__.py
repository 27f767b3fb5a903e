"""The entry point of `dprecipe` and of `python -m dprecipe`."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

SHORT = frozenset({"-h", "--help", "--version", "init", "plan", "schema", "show", "validate", "verify"})
"""Commands that take less than a second or two, most of it for imports."""
MANY = 300_000
"""Objects that a short command may make before Python's collector looks for garbage: more than all imports make."""


def main() -> NoReturn:
    """Runs a command.

    Imports make no garbage, and at the end of a process its memory is freed as a whole: a collector that looks for
    garbage takes a seventh of a short command's time for nothing, and a second at the end of one that has imported
    torch. Commands that train keep the usual collector until then, but for what imports make. One process of several
    has threads that its objects end: it is left alone.
    """
    if SHORT.issuperset(sys.argv[1:2]):
        gc.set_threshold(MANY)
    from dprecipe.libraries import ignore_all_warnings, own_process

    ignore_all_warnings()
    from dprecipe.cli.main import main

    alone = "WORLD_SIZE" not in os.environ
    if alone:
        own_process()
    try:
        main()
    finally:
        if alone:
            gc.freeze()


if __name__ == "__main__":
    main()
