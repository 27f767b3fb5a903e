"""Learning from a prior: the same bytes again, interrupted or not, below the last layer alone; and it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from dprecipe.data.schema import Scale, Step
from dprecipe.faults import DataFault, RunFailed
from dprecipe.models.build import build
from dprecipe.models.schema import Cnn, Mlp, PrimedNetwork, WideResNet
from dprecipe.priors.generate import digest_images, make_images
from dprecipe.priors.record import parse_prior
from dprecipe.priors.schema import Prior
from dprecipe.training.prior import make
from dprecipe.training.prior.learn import PriorLearner

PRIOR = Prior(generator="mixed", images=64, steps=6, batch_size=16, seed=3)
MODEL = Mlp(kind="mlp", hidden=(12,))
SHAPE = (1, 8, 8)
STEPS = (Step(scale=Scale(mean=0.5, std=0.25)),)


def tensors(content: bytes) -> dict[str, torch.Tensor]:
    return load(content)


def test_a_file_is_the_same_bytes_again_and_says_what_it_is() -> None:
    result = make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu")
    assert result.content == make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu").content
    read = parse_prior(result.content, "w")
    assert read is not None
    assert read.record == result.record
    assert read.weights == result.record.facts.weights
    assert result.record.facts.images == digest_images(PRIOR, SHAPE)
    other = make.make_prior(MODEL, PRIOR.model_copy(update={"seed": 4}), SHAPE, STEPS, "cpu")
    assert other.record.facts.weights != result.record.facts.weights


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (MODEL, SHAPE),
        (Cnn(kind="cnn", preset="lenet-norm"), (3, 12, 12)),
        (WideResNet(kind="wide_resnet", depth=10, width=1), (3, 8, 8)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_all_layers_move_but_the_last_which_is_left_out(model: PrimedNetwork, shape: tuple[int, int, int]) -> None:
    prior = PRIOR.model_copy(update={"steps": 1, "batch_size": 4})
    learned = tensors(make.make_prior(model, prior, shape, (), "cpu").content)
    fresh = dict(build(model, shape, make.CLASSES, prior.seed).state_dict())
    assert list(fresh)[:-2] == [name for name in fresh if name in learned]
    assert len(fresh) == len(learned) + 2
    assert all(not torch.equal(fresh[name], learned[name]) for name in learned if name.endswith("weight"))


def test_an_interrupted_learning_goes_on_as_if_it_never_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept = make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu"), tmp_path / "w.part"
    monkeypatch.setattr(make, "SAVE_SECONDS", 0.0)
    step, taken = PriorLearner.step, []

    def interrupted(learner: PriorLearner) -> None:
        if learner.done == 4:
            raise KeyboardInterrupt
        step(learner)

    monkeypatch.setattr(PriorLearner, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu", kept)
    assert kept.exists()

    def counted(learner: PriorLearner) -> None:
        taken.append(learner.done)
        step(learner)

    monkeypatch.setattr(PriorLearner, "step", counted)
    assert make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu", kept).content == whole.content
    assert taken == [4, 5]
    assert not kept.exists()


@pytest.mark.parametrize("content", [b"", b"no safetensors", None])
def test_what_is_left_of_another_learning_is_not_taken_up(tmp_path: Path, content: bytes | None) -> None:
    kept = tmp_path / "w.part"
    if content is None:
        images = make_images(PRIOR, SHAPE)
        learner = PriorLearner(build(MODEL, SHAPE, 2, 9), PRIOR, images, STEPS, torch.device("cpu"))
        learner.step()
        make.keep(learner, "another", kept)
        assert kept.exists()
    else:
        kept.write_bytes(content)
    result = make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu", kept)
    assert result.content == make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu").content


def test_other_images_than_the_recipe_states_are_not_learned_from() -> None:
    stated = PRIOR.model_copy(update={"digest": "sha256:" + "0" * 64})
    with pytest.raises(DataFault, match=digest_images(PRIOR, SHAPE)):
        make.make_prior(MODEL, stated, SHAPE, STEPS, "cpu")
    right = PRIOR.model_copy(update={"digest": digest_images(PRIOR, SHAPE)})
    assert make.make_prior(MODEL, right, SHAPE, STEPS, "cpu").record.prior == PRIOR


def test_a_loss_that_is_not_finite_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    step = PriorLearner.step

    def broken(learner: PriorLearner) -> None:
        step(learner)
        learner.losses = (float("nan"), 0.0)

    monkeypatch.setattr(PriorLearner, "step", broken)
    with pytest.raises(RunFailed, match="not finite at step 1"):
        make.make_prior(MODEL, PRIOR, SHAPE, STEPS, "cpu")


def test_it_learns_to_tell_images_apart() -> None:
    """Of fresh images, the other view is the nearest among 64 far more often than at the start."""
    from dprecipe.data.preprocess import prepare_features
    from dprecipe.training.prior.learn import make_view

    prior = Prior(generator="mixed", images=512, steps=150, batch_size=64, lr=3e-3)
    learned = tensors(make.make_prior(Mlp(kind="mlp", hidden=(32,)), prior, SHAPE, STEPS, "cpu").content)
    fresh = build(Mlp(kind="mlp", hidden=(32,)), SHAPE, 2, 0)
    images = torch.from_numpy(make_images(prior.model_copy(update={"seed": 9}), SHAPE)[:64]).float() / 255
    generator = torch.Generator().manual_seed(5)
    views = [torch.from_numpy(prepare_features(make_view(images, generator).numpy(), STEPS)) for _ in range(2)]

    def matched() -> float:
        with torch.no_grad():
            one, other = (torch.nn.functional.normalize(fresh[:-1](view), dim=1) for view in views)  # type: ignore[index]
        return ((one @ other.T).argmax(1) == torch.arange(64)).float().mean().item()

    before = matched()
    fresh.load_state_dict({**fresh.state_dict(), **learned})
    assert matched() > before + 0.1
