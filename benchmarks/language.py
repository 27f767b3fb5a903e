"""What a clipped sum costs on decoders, against plain training of the same weights by `transformers` (and `peft`).

A step of each: `plain` is forward, backward and an SGD step of the library's own model, with its own loss; `ours` the
clipped sum of the same model, and the step; `recompute` that with blocks computed again in the backward pass; `opacus`
is Opacus's ghost clipping, of layers that it knows, with its own noise, which is not secure, where it is installed
(OPACUS_PYTHON names an interpreter that has it). Models are built from configurations, tokens are made up.

Rounds alternate plain, ours, plain, ours, …; ratios are of processor times of one round. Memory is the peak of a fresh
process that takes three steps, with what libraries and model take before the first step beside it.

Run: python benchmarks/language.py [case ...] [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from figures import ROOT, Spread, Unmeasured, alternate, parser_of, ratio, run_checked, seconds_of, table, write_json
from torch import Tensor, nn

from dprecipe.models.decoder_config import check_decoder_config, library_config
from dprecipe.models.lora import add_adapters
from dprecipe.models.schema import Lora
from dprecipe.models.zoo.causal_lm import CausalLanguageModel, causal_model
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.recompute import Recompute
from dprecipe.training.program.losses import NextTokenLoss

LENGTH, BATCH = 64, 16
CLIP, RATE, RANK, ALPHA = 0.1, 1e-3, 8, 16.0
GPT2 = {"model_type": "gpt2", "n_positions": 256, "n_embd": 384, "n_layer": 6, "n_head": 6, "vocab_size": 4096}
LLAMA = {
    "model_type": "llama", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "vocab_size": 4096,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip


class Case(NamedTuple):
    config: dict[str, Any]
    lora: bool
    rounds: int = 7


LARGE = GPT2 | {"n_embd": 512, "n_head": 8, "vocab_size": 16384}
CASES = {
    "gpt2 12M, LoRA": Case(GPT2, lora=True),
    "gpt2 12M, all": Case(GPT2, lora=False),
    "llama 13M, LoRA": Case(LLAMA, lora=True),
    "llama 13M, all": Case(LLAMA, lora=False),
    "gpt2 27M, LoRA": Case(LARGE, lora=True, rounds=5),
    "gpt2 27M, all": Case(LARGE, lora=False, rounds=5),
}
QUICK = ("gpt2 12M, LoRA", "gpt2 12M, all")


def made_up(case: Case) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(case.config["vocab_size"], (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    return torch.stack([tokens, tokens], 1).float(), torch.full((BATCH,), LENGTH - 1)


def build(case: Case) -> CausalLanguageModel:
    torch.manual_seed(0)
    model = causal_model(check_decoder_config(case.config), LENGTH)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
    return model


def plain(case: Case) -> Callable[[], None]:
    arguments = library_config(check_decoder_config(case.config))
    config = transformers.AutoConfig.for_model(arguments.pop("model_type"), **arguments)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if case.lora:
        import peft

        kinds = ("Linear", "Conv1D")
        linear = {name for name, layer in model.named_modules() if type(layer).__name__ in kinds and "head" not in name}
        spec = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=sorted(linear), lora_dropout=0.0)
        model = peft.get_peft_model(model, spec)
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], RATE)
    tokens = made_up(case)[0][:, 0].long()

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()

    return step


def ours(case: Case, again: bool = False) -> Callable[[], None]:
    model = build(case)
    if case.lora:
        add_adapters(model, Lora(rank=RANK, alpha=ALPHA), (), 0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, RATE)
    batch, loss = BatchPart(*made_up(case)), NextTokenLoss()
    module: nn.Module = Recompute(model, model.blocks) if again else model

    def step() -> None:
        total = clipped_sum(module, loss, batch, Clipping.flat(CLIP), BATCH).value.div_(BATCH)
        start = 0
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad.copy_(total[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
        del total
        optimizer.step()

    return step


class _WithLogits(nn.Module):
    """The decoder as Opacus takes it: logits from a Linear, positions of each record."""

    def __init__(self, model: CausalLanguageModel) -> None:
        super().__init__()
        self.backbone = getattr(model, model.backbone_name)
        self.head = nn.Linear(model.embedding.embedding_dim, model.embedding.num_embeddings, bias=False)
        for name, layer in list(self.backbone.named_modules()):
            if type(layer).__name__ == "TransposedLinear":
                parent, _, child = name.rpartition(".")
                setattr(self.backbone.get_submodule(parent), child, nn.Linear(layer.in_features, layer.out_features))
            if type(layer).__name__ == "WideRMSNorm":
                parent, _, child = name.rpartition(".")
                setattr(self.backbone.get_submodule(parent), child, nn.RMSNorm(layer.normalized_shape, layer.eps))

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
        places = torch.arange(LENGTH).expand(len(tokens), -1)
        hidden = self.backbone(input_ids=tokens, attention_mask=mask, position_ids=places, use_cache=False)
        logits: Tensor = self.head(hidden.last_hidden_state)
        return logits


def opacus(case: Case) -> Callable[[], None]:
    """With its own head, not tied: Opacus can't share a weight."""
    python = os.environ.get("OPACUS_PYTHON")
    if python:
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        sys.path.append(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    warnings.filterwarnings("ignore")
    model = _WithLogits(build(case))
    if case.lora:
        add_adapters(model, Lora(rank=RANK, alpha=ALPHA), (), 0)
        model.head.requires_grad_(False)
    net = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True, strict=False)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": CLIP, "expected_batch_size": BATCH}
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(trained, RATE), **settings)
    criterion = DPLossFastGradientClipping(net, optimizer, nn.CrossEntropyLoss(reduction="mean"))
    tokens = made_up(case)[0][:, 0].long()

    def step() -> None:
        optimizer.zero_grad()
        logits = net(tokens)[:, :-1]
        criterion(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1), shape=(BATCH, LENGTH - 1)).backward()
        optimizer.step()

    return step


WAYS: dict[str, Callable[[Case], Callable[[], None]]] = {
    "plain": plain,
    "ours": ours,
    "recompute": lambda case: ours(case, again=True),
    "opacus": opacus,
}


def steps(case: Case) -> dict[str, Callable[[], None]]:
    """Those of the ways that can do it."""
    result = {}
    for name, way in WAYS.items():
        try:
            step = way(case)
            step()
        except Exception as error:
            if name != "opacus":
                raise
            lines = str(error).splitlines() or [""]
            print(f"  opacus can't: {type(error).__name__}: {lines[0][:100]}", file=sys.stderr)
        else:
            result[name] = step
    return result


def peaks(name: str, way: str) -> tuple[float, float]:
    """MB at the peak, and before the first step."""
    try:
        used = run_checked([sys.executable, __file__, "peak", name, way])
    except Unmeasured:
        return math.nan, math.nan
    return used.peak_mb, float(used.output.strip().splitlines()[-1])


def print_resident(case: Case, way: str) -> None:
    step = WAYS[way](case)
    with open("/proc/self/statm", encoding="ascii") as file:
        before = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    step(), step(), step()
    print(before)


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if sys.argv[1:2] == ["peak"]:
        print_resident(CASES[sys.argv[2]], sys.argv[3])
        return
    parser = parser_of(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all if none is given")
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"no case {', '.join(unknown)}")
    asked = given.cases or (QUICK if given.quick else list(CASES))
    rows, ratios = [], {}
    # Before anything is built here: a child starts with its parent's peak.
    memory = {name: {way: peaks(name, way) for way in WAYS} for name in asked}
    for name in asked:
        case = CASES[name]
        timed = steps(case)
        ways = {way: lambda step=step: seconds_of(step, 1, time.thread_time) for way, step in timed.items()}
        times = alternate(ways, given.rounds or (3 if given.quick else case.rounds), warm_up=1)
        base = memory[name]["plain"]
        rows.append([name, "plain", f"{1000 * Spread.of(times['plain']).median:.0f} ms", "", f"{base[0]:.0f}", ""])
        for way in times:
            if way == "plain":
                continue
            spread, (peak, before) = ratio(times[way], times["plain"]), memory[name][way]
            of_peaks = f"{peak / base[0]:.2f} (steps alone {(peak - before) / (base[0] - base[1]):.2f})"
            taken = f"{1000 * Spread.of(times[way]).median:.0f} ms"
            rows.append([name, way, taken, str(spread), f"{peak:.0f}", of_peaks])
            if way == "ours":
                ratios[f"{name}: ours / plain"] = spread
        print(table(["model", "step", "time", "ratio of times", "peak, MB", "ratio of peaks"], rows[-len(times) :]))
        sys.stdout.flush()
    write_json(given.json, "language", ratios, quick=given.quick or bool(given.cases))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
