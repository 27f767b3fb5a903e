from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from dprecipe.models.form import Form  # noqa: E402
from dprecipe.models.modules.adapted import RecordByRecord, adapt_module  # noqa: E402

SHAPE, VOCABULARY = (7,), 50
TOKENS = Form(SHAPE, (0,))


class Bag(nn.Module):
    """Tokens, and who counts, to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))
        self.table, self.kinds, self.head = nn.Embedding(VOCABULARY, 8), nn.Embedding(3, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1)) * self.scale


class Masked(Bag):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:  # type: ignore[override]
        counts = attention_mask[..., None].float()
        mean = (self.table(input_ids) * counts).sum(1) / counts.sum(1)
        return SimpleNamespace(logits=self.head(mean))


class Fields(Bag):
    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        seen = (self.table(input_ids) + self.kinds(token_type_ids)) * attention_mask[..., None]
        return {"logits": self.head(seen.sum(1))}


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max().item() > 2:
            x = x / 2
        return self.head(x)


def test_a_module_of_plain_tensors_comes_back_as_it_is() -> None:
    module = nn.Linear(7, 4)
    assert adapt_module(module, Form.of(SHAPE)) == (module, Form.of(SHAPE), "")


def test_tokens_come_whole_and_in_range_and_the_table_says_how_many_there_are() -> None:
    module = Bag()
    result, form, single = adapt_module(module, TOKENS)
    assert (form.tokens, single) == ((VOCABULARY,), "")
    ids = torch.tensor([[1.0, 2, 3, 0, 0, 0, 0], [49, 60, -5, 1, 1, 1, 1]])
    expected = module(torch.tensor([[1, 2, 3, 0, 0, 0, 0], [49, 49, 0, 1, 1, 1, 1]]))
    assert torch.equal(result(ids), expected)


def test_a_record_that_is_not_finite_is_marked_and_stays_alone() -> None:
    result, _, _ = adapt_module(Bag(), TOKENS)
    records = torch.ones(3, 7)
    records[1, 2] = torch.nan
    assert result(records).isnan().all(1).tolist() == [False, True, False]


def test_quantities_that_only_a_table_takes_are_tokens() -> None:
    assert adapt_module(Bag(), Form.of(SHAPE))[1].tokens == (VOCABULARY,)


def test_whole_numbers_that_no_table_takes_are_left_as_they_are() -> None:
    module = nn.Linear(7, 4)
    result, form, _ = adapt_module(module, TOKENS)
    assert form.tokens == (0,)
    counts = torch.arange(14.0).view(2, 7) * 100 - 300
    assert torch.equal(result(counts), module(counts))


def test_a_mask_is_made_of_the_tokens_that_are_not_padding() -> None:
    module = Masked()
    result, _, _ = adapt_module(module, TOKENS)
    ids = torch.tensor([[4, 5, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
    assert torch.equal(result(ids.float()), module(ids, mask).logits)


def test_fields_come_by_name_each_in_the_range_of_its_own_table() -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    module = Fields()
    built, form, _ = adapt_module(module, Form((3, *SHAPE), (0, 0, 0), names))
    assert form.tokens == (VOCABULARY, 0, 3)
    ids, mask, kinds = torch.randint(0, VOCABULARY, (5, 7)), torch.ones(5, 7).long(), torch.randint(0, 3, (5, 7))
    result = built(torch.stack([ids, mask, kinds], 1).float())
    assert torch.equal(result, module(ids, kinds, mask)["logits"])


def test_a_module_that_decides_by_values_gets_records_one_by_one() -> None:
    module = Deciding()
    result, _, single = adapt_module(module, Form.of(SHAPE))
    assert "decides by values of records (test_adapted.py:" in single
    assert ".item() > 2" in single
    records = torch.randn(4, 7)
    before = result(records)[1:]
    records[0] = 100.0
    assert torch.equal(result(records)[1:], before)
    assert not torch.equal(module(records)[1:], before)


class Elsewhere(Deciding):
    """Reads values by other ways than `.item()`."""

    def __init__(self, read: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x / 2 if self.read(x.detach()) > 2 else x)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy().max(),
        lambda x: np.asarray(x).max(),
        lambda x: max(x.flatten().tolist()),
        lambda x: len(str(x)),
    ],
    ids=["numpy", "asarray", "tolist", "str"],
)
def test_values_that_leave_torch_are_seen(read: Callable[[Tensor], float]) -> None:
    _, _, single = adapt_module(Elsewhere(read), Form.of(SHAPE))
    assert "decides by values of records (test_adapted.py:" in single


def test_names_states_modes_copies_and_devices_are_the_modules_own() -> None:
    module = Bag().eval()
    result, _, _ = adapt_module(module, TOKENS)
    assert isinstance(result, RecordByRecord)
    assert result.state_dict().keys() == module.state_dict().keys()
    assert [name for name, _ in result.named_parameters()] == [name for name, _ in module.named_parameters()]
    assert not module.training
    assert not result.training
    result.train()
    assert module.training
    assert module.table.training
    other = copy.deepcopy(result).double()
    with torch.no_grad():
        other.scale.zero_()
    assert not bool(other(torch.ones(2, 7)).any())
    assert bool(result(torch.ones(2, 7)).any())
    assert module.scale.dtype == torch.float32


def test_trials_leave_nothing_behind() -> None:
    class Counting(Bag):
        def forward(self, ids: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(ids)

    module = Counting()
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    adapt_module(module, TOKENS)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert float(module.calls) == 0
