"""Many models at a time are what each of them is alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cross_entropy, pad

import pe
from pe._errors import PositionError
from pe.encodings.core import query_rows
from pe.encodings.core.frequencies import cos_sin
from pe.model import PEForCausalLM
from pe.model.initialize import draw_weights
from pe.model.rng import seed_step
from pe.tasks import IGNORE, Batch, Task, score
from pe.tasks.measure.many import Many, Member, Settings

SMALL = Settings(layers=2, width=16, heads=2, feedforward=24, steps=4, batch_size=5)
MEMBERS = [Member(0, 1e-2), Member(0, 3e-2), Member(1, 1e-2)]
# Of each way to act one: on embeddings, by rotation, by a bias that is fixed, learned, or made of
# what is read, with its own autograd function, with random positions, and by length.
NAMES = ("learned", "rope", "alibi", "t5", "cope", "fox", "pope", "randomized", "dynamic_ntk")


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Adam divides by the size of a gradient, and amplifies one that is rounding alone."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@functools.cache
def copying() -> Task:
    return pe.tasks.task("copy", items=6, train_lengths=(2, 4), ood_lengths=(5, 6))


def one_by_one(many: Many, member: Member) -> tuple[list[float], PEForCausalLM]:
    """The losses of a model that is trained the usual way, by torch's optimizer."""
    torch.manual_seed(7)
    task, settings = many.task, many.settings
    model = PEForCausalLM(many.config)
    draw_weights(model, member.seed)
    adam = torch.optim.AdamW(
        model.parameters(), member.learning_rate, weight_decay=settings.weight_decay
    )
    answers = list(task.answers)
    losses = []
    for step in range(settings.steps):
        for group in adam.param_groups:
            warm = (step + 1) / (settings.warmup_steps + 1)
            group["lr"] = member.learning_rate * min(1.0, warm)
        batch = task.batch(member.seed, step * settings.batch_size, settings.batch_size)
        seed_step(0, step, 0)
        logits = training_logits(model, batch, task.longest("train"))[..., answers]
        asked = batch.targets != IGNORE
        classes = torch.tensor([answers.index(t) for t in batch.targets[asked]])
        loss = cross_entropy(logits[torch.from_numpy(asked)], classes)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        adam.step()
        losses.append(loss.item())
    return losses, model.eval()


def training_logits(model: PEForCausalLM, batch: Batch, longest: int) -> Tensor:
    """Of a batch as it is; an encoding that draws positions draws as many as the longest has."""
    if not any(enc.random for enc in model.model.encodings):
        return logits_of(model, batch.tokens, batch.sizes)
    width = batch.tokens.shape[1]
    ids = pad(torch.as_tensor(batch.tokens), (0, longest - width))
    logits: Tensor = model(ids, use_cache=False).logits
    return logits[:, :width]


def logits_of(model: PEForCausalLM, tokens: object, sizes: object) -> Tensor:
    ids = torch.as_tensor(tokens)
    mask = (torch.arange(ids.shape[1]) < torch.as_tensor(sizes)[:, None]).long()
    logits: Tensor = model(ids, attention_mask=mask, use_cache=False).logits
    return logits


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_one_model_at_a_time(name: str) -> None:
    spec = "learned(table_size=64)" if name == "learned" else name
    settings = SMALL.model_copy(update={"warmup_steps": 2, "weight_decay": 0.1, "clip": 0.5})
    many = Many(copying(), spec, MEMBERS, settings)
    losses = torch.stack([many.step() for _ in range(settings.steps)], dim=1)
    for index, member in enumerate(MEMBERS):
        alone, model = one_by_one(many, member)
        assert losses[index].tolist() == pytest.approx(alone, rel=1e-6)
        for key, value in model.named_parameters():
            assert torch.allclose(many.parameters[key][index], value, rtol=1e-4, atol=1e-6), key
    assert losses[0, 0] == pytest.approx(float(losses[1, 0]))
    assert abs(float(losses[0, -1] - losses[1, -1])) > 1e-4


@pytest.mark.parametrize("name", ["fox", "fire"])
def test_a_bias_that_is_made_in_blocks_trains_many_models(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Many(copying(), name, MEMBERS, SMALL)
    monkeypatch.setattr(query_rows, "NUMBERS", 1)
    in_blocks = Many(copying(), name, MEMBERS, SMALL)
    for _ in range(2):
        assert torch.allclose(whole.step(), in_blocks.step(), rtol=1e-5)


@pytest.mark.parametrize("places", [(None, 1), (0, None), (0, 0)])
def test_cosines_of_many_models_are_those_of_each(
    places: tuple[int | None, int | None],
) -> None:
    positions = torch.arange(12).reshape(2, 6) if places[0] == 0 else torch.arange(6)
    rates = torch.rand(5, 2, 3, dtype=torch.float64) if places[1] == 1 else torch.rand(3).double()
    if places[1] == 0:
        rates = torch.rand(2, 4, 3, dtype=torch.float64)
    torch._C._functorch._set_vmap_fallback_enabled(False)  # an operator without a rule fails
    try:
        together = vmap(lambda p, r: cos_sin(p, r, torch.float32), in_dims=places)(positions, rates)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    for model in range(2):
        p = positions if places[0] is None else positions[model]
        r = rates if places[1] is None else rates.select(places[1], model)
        for all_models, alone in zip(together, cos_sin(p, r, torch.float32), strict=True):
            assert torch.equal(all_models[model], alone)


@pytest.mark.parametrize("name", ["rope", "dynamic_ntk", "randomized"])
def test_a_model_is_the_same_whoever_is_beside_it(name: str) -> None:
    together, alone = (Many(copying(), name, m, SMALL) for m in (MEMBERS, MEMBERS[2:]))
    for _ in range(3):
        assert float(together.step()[2]) == pytest.approx(float(alone.step()[0]), rel=1e-5)


@pytest.mark.parametrize("name", ["rope", "dynamic_ntk"])
def test_scores_are_those_of_one_model_at_a_time(name: str) -> None:
    many = Many(copying(), name, MEMBERS, SMALL)
    for _ in range(3):
        many.step()
    task, answers = many.task, torch.tensor(many.task.answers)
    together = [one.score for one in many.answers("ood", examples=12)]
    batch = task.batch(0, 0, 12, "ood")
    for index, found in enumerate(together):
        with torch.no_grad():
            logits = logits_of(many.model(index), batch.tokens, batch.sizes)[..., answers]
        assert score(answers[logits.argmax(-1)].numpy(), batch.targets) == found


def test_padding_does_not_count_as_length() -> None:
    """Dynamic NTK looks at the length: an example is what it is without the longer ones."""
    many = Many(copying(), "dynamic_ntk", MEMBERS[:1], SMALL)
    batch = copying().batch(0, 0, 6, "ood")
    short = int(batch.sizes.argmin())
    tokens, _, mask = many._on_device([batch])
    with torch.no_grad():
        inside = many.logits(tokens, mask)[0, short, : batch.sizes[short]]
        alone = many.logits(tokens[:, short : short + 1, : batch.sizes[short]])[0, 0]
    assert batch.sizes[short] < batch.sizes.max()
    assert torch.allclose(inside, alone, atol=1e-5)


def test_a_task_is_learned_and_scored() -> None:
    task = pe.tasks.task("k_back", k=1, items=4, train_lengths=(8, 8), ood_lengths=(12, 12))
    settings = SMALL.model_copy(update={"steps": 80, "batch_size": 16, "width": 32})
    members = [Member(seed, rate) for seed in (0, 1) for rate in (1e-4, 2e-2)]
    many = Many(task, "rope", members, settings)
    for _ in range(settings.steps):
        assert many.step().shape == (4,)
    for member, answers in zip(members, many.answers("id", 50), strict=True):
        assert answers.score.examples == 50
        assert (answers.score.token > 0.9) == (member.learning_rate == 2e-2)


def test_a_model_that_diverged_has_nothing_right() -> None:
    """Its logits are NaN, and the maximum of those would be the first answer."""
    many = Many(copying(), "rope", MEMBERS[:2], SMALL)
    many.parameters["model.embed_tokens.weight"].data[1] = math.nan
    well, broken = many.answers("id", 40)
    assert math.isfinite(well.loss)
    assert well.right.sum() == well.score.tokens_right > 0
    assert math.isnan(broken.loss)
    assert broken.right.sum() == broken.score.tokens_right == broken.score.examples_right == 0
    assert broken.score.tokens == well.score.tokens


def test_positions_that_are_not_there_have_no_score() -> None:
    many = Many(copying(), "learned", MEMBERS[:1], SMALL)
    assert many.answers("id", 5)
    with pytest.raises(PositionError):
        many.answers("ood", 5)


def test_no_members_and_impossible_models_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one seed and rate"):
        Many(copying(), "rope", [], SMALL)
    with pytest.raises(ValueError, match="unknown encoding 'rop'"):
        Many(copying(), "rop", MEMBERS, SMALL)
    for options, message in [
        ({"step": 3}, "unknown option 'step' .did you mean 'steps'"),
        ({"steps": -1}, "steps: expected 0 or more, got -1"),
        ({"precision": "float16"}, "unknown precision 'float16' .did you mean 'bfloat16'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Settings(**options)
