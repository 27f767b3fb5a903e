"""Decoders of eight families, tiny and with random weights: equal to the library's, and their gradients by record."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from torch import Tensor, nn  # noqa: E402

from dprecipe.faults import DataFault  # noqa: E402
from dprecipe.models.decoder_config import check_decoder_config, library_config  # noqa: E402
from dprecipe.models.zoo.causal_lm import CausalLanguageModel, causal_model  # noqa: E402
from dprecipe.models.zoo.layers import NextTokens  # noqa: E402
from dprecipe.training.engine.bookkeeping import add_clipped  # noqa: E402
from dprecipe.training.engine.clipping import Clipping  # noqa: E402
from dprecipe.training.engine.single import per_record_gradients  # noqa: E402
from dprecipe.training.program.losses import NextTokenLoss  # noqa: E402
from tests.decoders import DECODERS, LENGTH, VOCABULARY  # noqa: E402

each_family = pytest.mark.parametrize("family", DECODERS)


def make(family: str, length: int = LENGTH, **changes: Any) -> CausalLanguageModel:
    torch.manual_seed(0)
    built = causal_model(check_decoder_config({**DECODERS[family], **changes}), length)
    with torch.no_grad():
        for parameter in built.parameters():  # norms start as the identity, and would hide their weights
            parameter.add_(0.1 * torch.randn_like(parameter))
    return built


def records(count: int = 4) -> tuple[Tensor, Tensor]:
    """Texts of several lengths with a prompt, padded by token 0."""
    torch.manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (count, LENGTH))
    labels = tokens.clone()
    labels[:, :2] = -100
    for number in range(1, count):
        tokens[number, LENGTH - 2 * number :] = 0
        labels[number, LENGTH - 2 * number :] = -100
    return torch.stack([tokens, labels], 1).float(), (labels[:, 1:] >= 0).sum(1)


def library_model(built: CausalLanguageModel) -> Any:
    arguments = library_config(built.config)
    config = transformers.AutoConfig.for_model(arguments.pop("model_type"), **arguments)
    result = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    state = {name.replace("embed_out", "lm_head"): tensor for name, tensor in built.state_dict().items()}
    missing = set(result.state_dict()) - set(state)
    assert missing == ({"lm_head.weight"} if built.is_tied else set())
    result.load_state_dict(state, strict=False)
    result.tie_weights()
    return result


@each_family
def test_outputs_are_those_of_the_library(family: str) -> None:
    built = make(family)
    features, _ = records()
    tokens, labels = features[:, 0].long(), features[:, 1].long()
    logits = library_model(built)(tokens, attention_mask=(tokens > 0).long()).logits.log_softmax(-1)[:, :-1]
    chosen = logits.gather(2, labels[:, 1:].clamp(0)[..., None])[..., 0]
    torch.testing.assert_close(built(features), torch.where(labels[:, 1:] < 0, 0.0, chosen), rtol=1e-5, atol=1e-5)


@each_family
def test_gradients_are_those_of_a_loop_over_single_records(family: str) -> None:
    built, loss = make(family), NextTokenLoss()
    features, labels = records()
    rows = []
    for i in range(len(labels)):
        built.zero_grad()
        loss(built(features[i : i + 1]), labels[i : i + 1]).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in built.parameters() if p.grad is not None]))
    loop = torch.stack(rows)
    assert loop.shape[1] == sum(p.numel() for p in built.parameters())
    torch.testing.assert_close(per_record_gradients(built, loss, features, labels), loop, rtol=1e-5, atol=1e-6)
    norms = loop.double().norm(dim=1)
    threshold = float(norms.median())
    total = torch.zeros(loop.shape[1], dtype=torch.float64)
    add_clipped(built, loss, features, labels, Clipping((threshold,)), total)
    expected = (loop.double() * (threshold / norms).clamp(max=1.0)[:, None]).sum(0)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


@each_family
def test_a_place_sees_no_later_place_and_no_other_record(family: str) -> None:
    built = make(family)
    features, _ = records()
    expected = built(features)
    changed = features.clone()
    changed[:, 0, 8:] = 5.0
    changed[:, 1, 8:] = -100.0
    torch.testing.assert_close(built(changed)[:, :7], expected[:, :7])
    alone = torch.cat([built(features[i : i + 1]) for i in range(len(features))])
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_sequences_of_a_record_are_each_read_by_themselves(family: str) -> None:
    one, several = make(family), make(family, length=4)
    features, _ = records()
    apart = features.unflatten(2, (3, 4)).transpose(1, 2)  # records, sequences, 2, places
    expected = one(apart.flatten(0, 1)).unflatten(0, (-1, 3))
    outputs = torch.nn.functional.pad(several(features), (1, 0)).unflatten(1, (3, 4))
    torch.testing.assert_close(outputs[..., 1:], expected, rtol=1e-5, atol=1e-6)
    assert not outputs[..., 0].any()  # no token of their sequence stands before them
    loss, count = NextTokenLoss("sum"), torch.ones(len(features), dtype=torch.int64)
    rows = per_record_gradients(one, loss, apart.flatten(0, 1), count.repeat_interleave(3))
    summed = rows.unflatten(0, (-1, 3)).sum(1)
    torch.testing.assert_close(per_record_gradients(several, loss, features, count), summed, rtol=1e-4, atol=1e-5)
    norms = summed.double().norm(dim=1)
    total, threshold = torch.zeros(summed.shape[1], dtype=torch.float64), float(norms.median())
    add_clipped(several, loss, features, count, Clipping((threshold,)), total)  # a record is clipped once
    clipped = (summed.double() * (threshold / norms).clamp(max=1.0)[:, None]).sum(0)
    torch.testing.assert_close(total, clipped, rtol=1e-4, atol=1e-4)


def test_a_head_that_is_the_embedding_is_one_parameter_and_counted_once() -> None:
    tied, own = make("gpt2"), make("gpt2", tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.transformer.wte.weight
    assert sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in tied.parameters()) == VOCABULARY * 16
    assert "lm_head.weight" not in tied.state_dict()
    assert "lm_head.weight" in own.state_dict()
    with torch.no_grad():
        own.lm_head.weight.copy_(own.transformer.wte.weight)
    own.load_state_dict({**own.state_dict(), **tied.state_dict(), "lm_head.weight": tied.lm_head.weight})
    features, labels = records()
    loss, width = NextTokenLoss(), VOCABULARY * 16
    apart = per_record_gradients(own, loss, features, labels)
    together = per_record_gradients(tied, loss, features, labels)
    # The gradient of the one table is the sum of those of the two: their norms do not simply add up.
    torch.testing.assert_close(together[:, :width], apart[:, :width] + apart[:, -width:], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(together.norm(dim=1), apart.norm(dim=1), rtol=1e-3)


def test_a_state_is_loaded_and_stays_tied() -> None:
    source, other = make("gpt2"), make("gpt2", n_layer=2)
    with torch.no_grad():
        other.transformer.wte.weight.zero_()
    other.load_state_dict(source.state_dict(), assign=True)
    assert other.lm_head.weight is other.transformer.wte.weight
    features, _ = records()
    torch.testing.assert_close(other(features), source(features))


def test_edge_cases_of_records() -> None:
    built = make("llama")
    features, _ = records()
    features[0, 0, 3], features[1, 0, 0], features[2, 1, 4] = 1e9, -7.0, torch.nan
    features[3, 1] = -100.0
    outputs = built(features)
    limited = features.clone()
    limited[0, 0, 3], limited[1, 0, 0] = VOCABULARY - 1, 0.0
    torch.testing.assert_close(outputs[:2], built(limited)[:2])
    assert outputs[2].isnan().all()
    assert not outputs[3].any()


@pytest.mark.parametrize("frozen", [False, True])
def test_log_likelihoods_in_pieces_are_those_of_all_logits(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.models.zoo.layers.LOGITS", 3 * 7)
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 4, requires_grad=True)
    head = NextTokens(nn.Parameter(torch.randn(7, 4), requires_grad=not frozen))
    labels = torch.tensor([[1, 2, 3, 4, 5], [-100, -100, 6, 0, -100], [-100] * 5])
    likelihoods = head(hidden, labels)
    logits = (hidden @ head.weight.T).log_softmax(-1)[:, :-1]
    expected = torch.where(labels[:, 1:] < 0, 0.0, logits.gather(2, labels[:, 1:].clamp(0)[..., None])[..., 0])
    torch.testing.assert_close(likelihoods, expected)
    weights = torch.randn(3, 4)
    inputs = [hidden] if frozen else [hidden, head.weight]
    for one, other in zip(
        torch.autograd.grad((likelihoods * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_records_longer_than_a_model_sees_are_refused() -> None:
    with pytest.raises(DataFault, match="33 tokens, the model has 32 positions"):
        make("llama", length=33)
    with pytest.raises(DataFault, match="looks back 8 "):
        make("mistral", sliding_window=8)
    assert make("mistral", sliding_window=LENGTH)


def test_nothing_is_drawn_in_training() -> None:
    built = make("gpt2").train()
    features, _ = records()
    state = torch.get_rng_state()
    built(features)
    assert torch.equal(torch.get_rng_state(), state)
