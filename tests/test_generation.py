"""Decoding with a cache, transformers' ways to generate, and what the cache refuses.

One encoding per combination of traits: that decoding equals prefill is a law for each of them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_tools import (
    KINDS,
    LENGTH,
    NAMES,
    close,
    encoding_of,
    in_a_cache,
    one_per_kind,
    small,
    stepwise,
    tokens,
)
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, StaticCache

from pe.encodings import Encoding, register
from pe.encodings.core import registry

EACH_KIND = pytest.mark.parametrize("name", KINDS)
# What a length-dependent encoding does to a token changes with the tokens after it, and so does
# what the layers above have cached of it. Beyond the training length decoding is not prefill then.
GROWS = [n for n in KINDS if encoding_of(n).length_dependent]
STEADY = pytest.mark.parametrize("name", [n for n in KINDS if n not in GROWS])
IN_A_CACHE = one_per_kind(NAMES, in_a_cache)
CACHED = pytest.mark.parametrize(
    "name", [n for n in IN_A_CACHE if not encoding_of(n).length_dependent]
)
GROWING = pytest.mark.parametrize("name", GROWS)


@STEADY
def test_decoding_with_left_padding_through_eager_attention(name: str) -> None:
    """ml-explore/mlx-lm#1906: padding keys are masked, and not counted, in every step.

    The law of padding says so of the default attention.
    """
    model = small(name, attn_implementation="eager")
    ids, pad = tokens(2, LENGTH + 6), 11
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits
        steps = stepwise(model, ids, [pad + 4, *[1] * 6, 9], attention_mask=mask)
        alone = stepwise(model, ids[:1, pad:], [4, *[1] * 6, 9])
    close(steps[0, pad:], whole[0, pad:])
    close(steps[1], whole[1])
    close(steps[0, pad:], alone[0])


@EACH_KIND
def test_explicit_positions_that_agree_are_accepted(name: str) -> None:
    model, ids = small(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)  # as transformers counts them
    cache = DynamicCache()
    with torch.no_grad():
        want = model(ids, attention_mask=mask, use_cache=False).logits
        first = model(ids[:, :9], attention_mask=mask[:, :9], position_ids=positions[:, :9],
                      past_key_values=cache).logits  # fmt: skip
        rest = model(ids[:, 9:], attention_mask=mask, position_ids=positions[:, 9:],
                     past_key_values=cache).logits  # fmt: skip
        close(torch.cat((first, rest), 1)[mask.bool()], want[mask.bool()])
        with pytest.raises(ValueError, match="with a cache, positions are those counted"):
            model(ids[:, :1], position_ids=torch.tensor([[0]]), past_key_values=cache)


@CACHED
@pytest.mark.parametrize(
    "settings",
    [{"num_beams": 3}, {"do_sample": True, "temperature": 0.8, "top_k": 7}],
    ids=["beams", "sampling"],
)
def test_generate_with_and_without_a_cache(name: str, settings: dict[str, Any]) -> None:
    model, ids = small(name), tokens(1, LENGTH - 4)
    results = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        out = model.generate(ids, max_new_tokens=16, min_new_tokens=16, use_cache=use_cache,
                             **({"do_sample": False} | settings))  # fmt: skip
        results.append(out)
    assert results[0].shape == (1, LENGTH + 12)
    assert torch.equal(*results)


@pytest.mark.parametrize(("name", "beams"), [*((name, 3) for name in IN_A_CACHE), ("rope", 1)])
def test_generate_from_a_padded_batch(name: str, beams: int) -> None:
    """unslothai/unsloth#3699: each sequence of a left-padded batch continues as it does alone."""
    model = small(name)
    prompts = [tokens(1, 3, seed=4), tokens(1, 14, seed=5), tokens(1, 9, seed=6)]
    ids, mask = torch.zeros(3, 14).long(), torch.zeros(3, 14).long()
    for row, prompt in enumerate(prompts):
        ids[row, 14 - prompt.shape[1] :] = prompt
        mask[row, 14 - prompt.shape[1] :] = 1
    settings: dict[str, Any] = {
        "max_new_tokens": 12, "min_new_tokens": 12, "num_beams": beams, "do_sample": False,
    }  # fmt: skip
    together = model.generate(ids, attention_mask=mask, **settings)[:, 14:]
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt, **settings)[0, prompt.shape[1] :]
        assert together[row].tolist() == alone.tolist()


@GROWING
@pytest.mark.parametrize("length", [5, LENGTH])
def test_growing_encodings_decode_as_they_prefill_up_to_the_training_length(
    name: str, length: int
) -> None:
    model, ids = small(name), tokens(2, length)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        close(stepwise(model, ids, [1] * length), whole)
        close(stepwise(model, ids, [2, length - 3, 1]), whole)


@GROWING
@pytest.mark.parametrize("length", [LENGTH + 1, 3 * LENGTH + 1])
def test_growing_encodings_rotate_all_keys_for_the_length_of_the_step(
    name: str, length: int
) -> None:
    """huggingface/transformers#25104, beside padding; without it, this is the law of the cache."""
    pad = 7
    model, ids = small(name, num_hidden_layers=1), tokens(2, length)
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits[:, -1]
        for chunks in ([pad + 2, *[1] * (length - pad - 2)], [length - 1, 1], [9, length - 9]):
            close(stepwise(model, ids, chunks, attention_mask=mask)[:, -1], whole)
        alone = model(ids[:1, pad:], use_cache=False).logits[:, -1]
    close(whole[:1], alone)


@GROWING
def test_growing_encodings_in_deep_models_decode_otherwise_than_they_prefill(name: str) -> None:
    """Each step reads all layers at its own length; what lies below was read at earlier ones."""
    model, ids = small(name), tokens(1, 2 * LENGTH)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, -1]
        step = stepwise(model, ids, [1] * (2 * LENGTH))[:, -1]
        assert (whole - step).abs().max() > 1e-3
        out = model.generate(
            ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, use_cache=False
        )
        for end in range(2 * LENGTH, 2 * LENGTH + 6):  # without a cache each step is a prefill
            logits = model(out[:, :end], use_cache=False).logits[0, -1]
            logits[0] = float("-inf")  # the end token, which min_new_tokens forbids
            assert int(logits.argmax()) == int(out[0, end])


def test_greedy_tokens_are_the_likeliest() -> None:
    model, ids = small("pope"), tokens(1, 5)
    out = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    with torch.no_grad():
        logits = model(out).logits[0, 4:-1]
    logits[:, 0] = float("-inf")  # the end token, which min_new_tokens forbids
    assert torch.equal(logits.argmax(-1), out[0, 5:])


def test_generation_stops_at_the_end_token() -> None:
    model, ids = small("rope"), tokens(1, 5)
    free = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    stop = int(free[0, 8])
    first = int((free[0, 5:] == stop).nonzero()[0])
    settings = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=stop)
    out = model.generate(ids, generation_config=settings)
    assert out[0].tolist() == free[0, : 5 + first + 1].tolist()


def test_evaluation_returns_a_cache_and_training_none() -> None:
    model, ids = small("rope"), tokens(1, 5)

    def cached(**arguments: Any) -> bool:
        out = model(ids, **arguments)
        return any(out.get(key) is not None for key in ("cache", "past_key_values"))

    assert cached()
    assert not cached(use_cache=False)
    assert not cached(labels=ids)
    assert not cached(position_ids=torch.arange(5) + 3)
    assert not cached(document_ids=torch.zeros(1, 5).long())
    model.train()
    assert not cached()


def test_a_static_cache_is_refused() -> None:
    # It hands back keys for places that are still empty; attending to them is silently wrong.
    model, ids = small("rope"), tokens(1, 5)
    with pytest.raises(ValueError, match="static cache is not supported"):
        model(ids, past_key_values=StaticCache(model.config, max_cache_len=14))
    with pytest.raises(ValueError, match="use transformers' DynamicCache"):
        model.generate(ids, max_new_tokens=4, cache_implementation="static")


@CACHED
def test_other_ways_to_decode_give_the_same_tokens(name: str) -> None:
    """They crop the cache or start from embeddings."""
    model, ids = small(name), tokens(1, LENGTH - 5)
    settings: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    want = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **settings), want)
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embedded, **settings), want[:, ids.shape[1] :])


class GrowingAngle(Encoding):
    """Rotates by an angle that depends on the length of the sequence: keys are cached unrotated."""

    length_dependent = True
    rotates = True

    def rotate(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        tables: Any = None,
    ) -> tuple[Tensor, Tensor]:
        longest = k_positions.amax(-1, keepdim=True).float()

        def rotated(x: Tensor, positions: Tensor) -> Tensor:
            angle = (positions / (10 + longest))[..., None]
            angle = angle[None, None] if angle.dim() == 2 else angle[:, None]
            a, b = x.chunk(2, dim=-1)
            return torch.cat(
                (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1
            )

        return rotated(q, q_positions), rotated(k, k_positions)


class ContentBias(Encoding):
    """A bias that looks at queries and keys, as they were before any rotation."""

    content_dependent = True

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        distance = q_positions[..., :, None] - k_positions[..., None, :]
        distance = distance if distance.dim() == 2 else distance[:, None]
        return (q @ keys.transpose(-1, -2)).float().sigmoid() * (0.1 * distance)


class FewPositions(Encoding):
    max_positions = 8


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    for cls in (GrowingAngle, ContentBias, FewPositions):
        register(cls.__name__)(cls)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("name", ["GrowingAngle", "ContentBias", "rope+ContentBias"])
def test_keys_are_cached_unrotated_where_the_encoding_says_so(name: str) -> None:
    """The last logits of step-by-step decoding are those of the whole at that length."""
    model, ids = small(name), tokens(2, 2 * LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    with torch.no_grad():
        for more in ({}, {"attention_mask": mask}):
            steps = stepwise(model, ids, [9, *[1] * (2 * LENGTH - 9)], **more)
            for end in (10, LENGTH, 2 * LENGTH):
                cut = {key: value[:, :end] for key, value in more.items()}
                # What earlier layers cached was computed at earlier lengths; only one layer's
                # keys can be told apart from that, so the model below has one.
                if name != "GrowingAngle":
                    whole = model(ids[:, :end], use_cache=False, **cut).logits
                    close(steps[:, end - 1], whole[:, -1])
            shallow = small(name, num_hidden_layers=1)
            steps = stepwise(shallow, ids, [9, *[1] * (2 * LENGTH - 9)], **more)
            for end in (10, LENGTH, 2 * LENGTH):
                cut = {key: value[:, :end] for key, value in more.items()}
                whole = shallow(ids[:, :end], use_cache=False, **cut).logits
                close(steps[:, end - 1], whole[:, -1])


@pytest.mark.usefixtures("toys")
def test_a_position_too_far_is_refused_before_any_work() -> None:
    model, ids = small("FewPositions"), tokens(1, 9)
    model(ids[:, :8])
    with pytest.raises(ValueError, match="'FewPositions' has no position 8: longest position 7"):
        model(ids)
    with pytest.raises(ValueError, match="no position 8"):
        model.generate(ids[:, :6], max_new_tokens=5, min_new_tokens=5, do_sample=False)
    padded = torch.ones(1, 9).long()
    padded[0, 0] = 0
    model(ids, attention_mask=padded)  # eight real tokens
