"""Self-Extend against its authors' attention, through caches, and where it is put on models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pictures import self_extend
from torch import Tensor

import pe
from pe.attention import attend
from pe.encodings import encoding, extension_methods
from pe.encodings.self_extend import SelfExtend, longest_text, smallest_group
from pe.model import PEConfig, PEForCausalLM

SIZES: dict[str, Any] = {"head_dim": 8, "num_heads": 4, "num_kv_heads": 2}


def theirs(q: Tensor, k: Tensor, v: Tensor, group: int, window: int) -> Tensor:
    """`self_extend_forward` of datamllab/LongLM (llama_self_extend_patch.py, the first release), of
    queries, keys and values, all keys given: (B, H, T, D) -> (B, H, T, D)."""
    dim, length = q.shape[-1], k.shape[-2]
    positions = torch.arange(length)[None]
    steps = 10000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def turned(x: Tensor, places: Tensor) -> Tensor:
        angles = places[..., None].double() * steps
        cos, sin = (torch.cat((f, f), -1)[:, None] for f in (angles.cos(), angles.sin()))
        half = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1)
        return x * cos + half * sin

    shift = 0 if positions.max() < window else window
    at_q, at_k = positions // group + shift - shift // group, positions // group
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    causal = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
    near = turned(q, positions) @ turned(k, positions).mT / math.sqrt(dim) + causal
    far = turned(q, at_q) @ turned(k, at_k).mT / math.sqrt(dim) + causal
    keep = torch.ones(length, length).tril()
    if length - window > 0:
        keep[window:, :-window] -= torch.ones(length - window, length - window).tril()
    return torch.where(keep.bool(), near, far).softmax(-1) @ v


def drawn(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (
        torch.randn(2, heads, length, 8, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2)
    )
    return q, k, v


@pytest.mark.parametrize(("group", "window"), [(4, 8), (3, 7), (1, 5), (8, 2), (2, 40)])
def test_it_is_the_authors_attention(group: int, window: int) -> None:
    enc = encoding(
        "self_extend", original_length=64, group_size=group, neighbor_window=window, **SIZES
    )
    for length in (1, window, window + 1, 37):
        q, k, v = drawn(length)
        want = theirs(q, k, v, group, window)
        for backend in (None, "dense"):
            got = attend(enc, q, k, v, backend=backend)
            torch.testing.assert_close(got, want, atol=1e-11, rtol=0)
    places = torch.arange(37)
    step = attend(enc, q[:, :, -1:], k, v, places[-1:], places)
    torch.testing.assert_close(step, want[:, :, -1:], atol=1e-11, rtol=0)


@pytest.mark.parametrize(("length", "window"), [(70, 20), (37, 40), (33, 1)])
def test_kernels_attend_to_near_and_far_keys_apart(length: int, window: int) -> None:
    sizes = SIZES | {"head_dim": 16}
    enc = encoding("self_extend", original_length=64, group_size=3, neighbor_window=window, **sizes)
    torch.manual_seed(length)
    q, k, v = (torch.randn(2, heads, length, 16) for heads in (4, 2, 2))
    with torch.no_grad():
        apart = attend(enc, q, k, v, backend="kernel")
    torch.testing.assert_close(apart, attend(enc, q, k, v, backend="dense"), atol=2e-3, rtol=0)
    with pytest.raises(ValueError, match="kernel' cannot serve SelfExtend"):
        attend(enc, q.requires_grad_(), k, v, backend="kernel")


def test_no_distance_is_new_in_the_longest_text_and_one_is_in_the_next() -> None:
    for length, window, group in ((24, 6, 5), (64, 16, 4), (33, 8, 3), (16, 15, 2)):
        enc = encoding(
            "self_extend", original_length=length, group_size=group, neighbor_window=window, **SIZES
        )
        assert isinstance(enc, SelfExtend)
        tokens = longest_text(length, window, group)
        for last, new in ((tokens - 1, False), (tokens, True)):
            far_q, far_k = enc.grouped(torch.tensor([last]), torch.tensor([0]))
            assert (int(far_q - far_k) >= length) == new


def test_the_factor_takes_the_smallest_group_that_reaches_in_whole_groups() -> None:
    assert smallest_group(4096, 16384) == (5, 1020)
    assert smallest_group(4096, 32768, 1024) == (11, 1024)
    assert smallest_group(4096, 4096) == (1, 1024)
    for length, tokens in ((24, 2_000), (7, 55), (4096, 10**12)):  # groups wider than the window
        group, window = smallest_group(length, tokens)
        assert (
            longest_text(length, window, group) >= tokens > longest_text(length, window, group - 1)
        )
    for length in (2, 3, 24, 1000, 1024):
        for factor in (1, 2, 4, 16):
            group, window = smallest_group(length, factor * length)
            assert longest_text(length, window, group) >= factor * length
            assert group == 1 or smallest_group(length, factor * length - length)[0] <= group
    enc = encoding("self_extend", original_length=1024, factor=2.0, **SIZES)
    assert (enc.group_size, enc.neighbor_window) == smallest_group(1024, 2048)


def test_groups_of_one_are_rope() -> None:
    q, k, v = drawn(29)
    one = encoding("self_extend", original_length=16, factor=1.0, **SIZES)
    torch.testing.assert_close(
        attend(one, q, k, v), attend(encoding("rope", **SIZES), q, k, v), atol=1e-12, rtol=0
    )


def model(spec: str, **more: Any) -> PEForCausalLM:
    torch.manual_seed(0)
    config = PEConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, pe=spec,
        initializer_range=0.3, eos_token_id=0, bos_token_id=0, pad_token_id=0, **more,
    )  # fmt: skip
    made: PEForCausalLM = PEForCausalLM(config).eval()
    return made


@torch.no_grad()
def test_generating_with_a_window_left_padding_and_a_cache_is_generating_without() -> None:
    longer = pe.convert(model("rope"), "self_extend+window:20+sinks:2", factor=4.0)
    tokens = torch.randint(1, 61, (2, 30), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[0, :7] = 0
    arguments = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    cached = longer.generate(tokens, use_cache=True, **arguments)
    assert torch.equal(cached, longer.generate(tokens, use_cache=False, **arguments))
    assert not torch.equal(cached, model("rope").generate(tokens, **arguments))


def test_what_scales_logits_or_moves_with_the_length_is_refused() -> None:
    build = {"original_length": 16, **SIZES}
    for spec in ("self_extend+ssmax", "head_scale+self_extend", "self_extend+temperature:4"):
        with pytest.raises(ValueError, match="self_extend adds the difference to other logits"):
            encoding(spec, **build)
    for spec in ("dynamic_ntk+self_extend", "clex+self_extend"):
        with pytest.raises(ValueError, match="self_extend counts far keys with fixed frequencies"):
            encoding(spec, **build)
    with pytest.raises(ValueError, match="rope and self_extend both rotate"):
        encoding("rope+self_extend", **build)
    with pytest.raises(ValueError, match="neighbor_window 16: a model trained on 16 tokens"):
        encoding("self_extend", neighbor_window=16, **build)
    with pytest.raises(ValueError, match="factor 2 and group_size 3 both set the size of a group"):
        encoding("self_extend", factor=2.0, group_size=3, **build)


def test_it_is_a_zero_shot_method_and_a_row_of_explain() -> None:
    assert "self_extend" in extension_methods()
    config = {
        "model_type": "llama", "max_position_embeddings": 4096, "num_hidden_layers": 2,
        "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4,
    }  # fmt: skip
    row = pe.explain(config, 16384).method("self_extend")
    assert (row.unseen, row.changed, row.paper, row.reach) == (0, 0, "2401.01325", 4096)
    assert row.short_texts == "same to 1,020"
    assert "groups of 5" in row.remark


@torch.no_grad()
def test_a_model_of_transformers_reads_far_keys_in_groups_at_its_own_scale_of_logits() -> None:
    """Gemma 3's logits are not divided by the root of the width, and its window stays."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=16,
        sliding_window=6, layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=50, initializer_range=0.3,
    )  # fmt: skip
    host = Gemma3ForCausalLM(config).double().eval()
    longer = pe.adapt(host, "self_extend", group_size=4, neighbor_window=4)
    assert longer.pe_adaptation.layers == (1,)
    tokens = torch.randint(1, 61, (1, 24), generator=torch.Generator().manual_seed(1))
    seen: dict[str, Tensor] = {}
    module = longer.model.layers[1].self_attn
    for name in ("q_norm", "k_norm", "v_proj"):
        getattr(module, name).register_forward_hook(
            lambda m, a, out, name=name: seen.__setitem__(name, out)
        )
    module.o_proj.register_forward_pre_hook(lambda m, a: seen.__setitem__("out", a[0]))
    logits = longer(tokens).logits
    q = seen["q_norm"] * math.sqrt(8 / 50)
    base = config.rope_parameters["full_attention"]["rope_theta"]
    enc = encoding(
        "self_extend", original_length=16, group_size=4, neighbor_window=4, theta=base, **SIZES
    )
    v = seen["v_proj"].view(1, 24, -1, 8).transpose(1, 2)
    want = attend(enc, q, seen["k_norm"], v, backend="dense")
    torch.testing.assert_close(seen["out"], want.transpose(1, 2).flatten(-2), atol=1e-9, rtol=0)
    assert not torch.allclose(logits, host(tokens).logits)


def test_the_picture_of_its_distances() -> None:
    small = self_extend.distances(
        torch.arange(16), original_length=8, group_size=4, neighbor_window=4
    )
    assert small[15].tolist() == [6] * 4 + [5] * 4 + [4] * 4 + [3, 2, 1, 0]
    assert int(self_extend.last_query(5)[-1]) == 4092
