"""A double round of ChaCha20 as one GPU kernel, instead of 42.

Noise for 100 million numbers took 13,600 kernels, and the processor takes 35 to 100 microseconds to start each.
Only integers are compiled: whatever a compiler fuses, the words are the same, unless it has a fault. So a program is
used only if its words are those of the single operations, and the noise check compares the keystream that is made with
it with OpenSSL's. Draws, sums and the lattice are never compiled (`dprecipe.training.steps.noise`).

Nothing is compiled later than in the noise check, before anything is spent: `Keystream` uses what was made here in the
same process, and else single operations, whose words are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from dprecipe.libraries import ignoring_warnings
from dprecipe.training.engine.compilers import find_compiler, find_missing
from dprecipe.training.steps.chacha import COLUMNS, DIAGONALS, PROGRAM_BLOCKS, PROGRAMS, TURNS, WORDS, Keystream


def compile_keystream(device: torch.device) -> str:
    """Lets a program make the keystreams on this device, from now on; says whether it does.

    Guarantees: without a program, or a sound one, they are made as before.
    """
    if missing := find_missing(device):
        return f"not compiled: {missing}"
    state_CN = torch.arange(WORDS * PROGRAM_BLOCKS, dtype=torch.int32, device=device).view(WORDS, PROGRAM_BLOCKS)
    state_CN *= 0x9E3779B1 - 2**32  # an odd factor: all words differ, in all their bits
    if state_CN.device in PROGRAMS:
        return "compiled"
    try:
        with torch.no_grad(), ignoring_warnings():
            graph = make_fx(_double_round, tracing_mode="fake")(state_CN)
            compute = find_compiler(graph, [state_CN])
            found = compute(state_CN)[0]
    except Exception as error:  # a compiler does not promise what it raises
        return f"not compiled: {type(error).__name__}"
    if not torch.equal(found, Keystream(bytes(32), device)._double_round(state_CN)):
        return "not compiled: the compiler's program makes other words"
    PROGRAMS[state_CN.device] = lambda state_CN: compute(state_CN)[0]
    return "compiled"


def _double_round(state_CN: Tensor) -> list[Tensor]:
    """Computes RFC 8439, section 2.3, of single rows, from which a compiler makes one kernel."""
    rows = list(torch.unbind(state_CN))
    for a, b, c, d in (*COLUMNS, *DIAGONALS):
        for turns_d, turns_b in TURNS:
            rows[a] = rows[a] + rows[b]
            rows[d] = _turn(rows[d] ^ rows[a], turns_d)
            rows[c] = rows[c] + rows[d]
            rows[b] = _turn(rows[b] ^ rows[c], turns_b)
    return [torch.stack(rows)]


def _turn(words: Tensor, by: int) -> Tensor:
    return (words << by) | ((words >> (32 - by)) & ((1 << by) - 1))
