"""Runs the commands of copies of dprecipe, each in a child of one process that has imported the libraries.

Reads a JSON object a line: `root` (the folder that holds the copy), `arguments` (of `python -m dprecipe`), `output`
(the file for what the command writes), `seconds` (the processor time that it may take). Answers with one: `code`, the
exit code, negative for a signal; `seconds`, the processor time of the command and its own children.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from typing import Any

import lightning.pytorch
import pydantic
import scipy.special
import scipy.stats
import torch
import yaml
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

LIBRARIES = (lightning.pytorch, pydantic, scipy.special, scipy.stats, torch, yaml, Cipher, algorithms)
INTERNAL = 70


def run_command(request: dict[str, Any]) -> int:
    """In the child: run the command of the copy; returns its exit code."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    limit = request["seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    os.environ["PYTHONPATH"] = request["root"]  # of processes that it starts
    sys.path.insert(0, request["root"])
    sys.argv = ["dprecipe", *request["arguments"]]
    from dprecipe.__main__ import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def serve() -> None:
    """Answer requests, one after the other, until there are no more."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = INTERNAL
            try:
                code = run_command(request)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status, usage = os.wait4(child, 0)
        answer = {"code": os.waitstatus_to_exitcode(status), "seconds": usage.ru_utime + usage.ru_stime}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
