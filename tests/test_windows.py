"""Which keys a layer sees: windows, chunks and sinks by every path; schedules of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_tools import close, small, tokens
from torch import Tensor
from transformers import DynamicCache

import pe
from pe.attention import BACKENDS, choose, path_for
from pe.attention.choose import obstacle
from pe.attention.spans import spans
from pe.conformance import check_laws
from pe.encodings import Encoding, check, encoding, layer_encodings
from pe.encodings.core.composite import Composite
from pe.encodings.core.key_range import KeyRange, key_range
from pe.encodings.core.registry import about
from pe.encodings.core.spec import joined, layer_specs, parse
from pe.figures.schedule import layer_rows
from pe.model import PEConfig
from pe.model.cache import held_tokens
from pe.notebooks import page
from pe.runs import Run

SIZES: dict[str, Any] = {"head_dim": 8, "num_heads": 4, "num_kv_heads": 2}
SCHEDULES = ("3*(rope+window:5+sink), nope", "rope+chunk:4, nope+window:3+sinks:2")


def attended(spec: str, length: int = 9, backend: str = "dense", **more: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, length, 8, generator=generator)
    k, v = torch.randn(2, 1, 2, length, 8, generator=generator)
    return pe.attend(encoding(spec, **SIZES), q, k, v, backend=backend, **more)


def by_hand(shown: Tensor, sink: float | None = None) -> Tensor:
    """The same inputs under this mask (T, T), written out."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, len(shown), 8, generator=generator)
    k, v = torch.randn(2, 1, 2, len(shown), 8, generator=generator).repeat_interleave(2, 2)
    weights = (q @ k.mT / 8**0.5).exp() * shown
    return weights @ v / (weights.sum(-1, keepdim=True) + (torch.tensor(sink).exp() if sink else 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_seen_is_what_the_formulas_say(backend: str) -> None:
    i, j = torch.arange(9)[:, None], torch.arange(9)
    causal = j <= i
    for spec, shown in {
        "window:3": i - j < 3,
        "nope+window:1": i == j,
        "window:99": causal,
        "chunk:4": i // 4 == j // 4,
        "window:3+sinks:2": (i - j < 3) | (j < 2),
        "chunk:4+sinks:1+nope": (i // 4 == j // 4) | (j == 0),
        "window:3+chunk:4": (i - j < 3) & (i // 4 == j // 4),
    }.items():
        torch.testing.assert_close(attended(spec, backend=backend), by_hand(shown & causal))
    got = attended("window:3+sink(sink_init=0.7)", backend=backend)
    torch.testing.assert_close(got, by_hand((i - j < 3) & causal, 0.7))


def test_a_window_counts_the_tokens_that_a_query_may_see() -> None:
    """Hidden tokens count nowhere, and each document begins at 0, whatever the positions are."""
    document = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
    mask = (document[:, None] == document).tril()
    mask[:, 2] = False
    shown = torch.zeros(9, 9, dtype=torch.bool)
    for i in range(9):
        shown[i, [j for j in range(9) if mask[i, j]][-2:]] = True
    for positions in (torch.arange(9), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3])):
        got = attended("window:2", q_positions=positions, k_positions=positions, mask=mask)
        torch.testing.assert_close(got, by_hand(shown))


@pytest.mark.parametrize(
    "spec",
    ["rope+ssmax+temperature:9+window:5", "alibi+chunk:6", "fox+window:5+sinks:2", "cope+window:7",
     "nope+sink", "t5+window:4+sink", "dynamic_ntk+chunk:7", *SCHEDULES],
)  # fmt: skip
def test_the_laws_hold(spec: str) -> None:
    report = check_laws(spec, {})
    assert report.ok, str(report)
    results = {finding.law.name: finding.result for finding in report.findings}
    if encoding(spec, **SIZES, original_length=24).hides:
        assert results["unseen"] == "ok"
    kept = ("cache", "padding", "holes", "documents", "blind")
    assert {results[name] for name in kept} == {"ok"}


def held(cache: DynamicCache) -> list[int]:
    return [layer.keys.shape[-2] for layer in cache.layers]


@torch.no_grad()
def test_a_cache_keeps_no_more_than_a_window_needs() -> None:
    model, ids = small("rope+window:5, nope+chunk:8+sinks:2", num_hidden_layers=4), tokens(2, 40)
    whole, cache = model(ids, use_cache=False).logits, DynamicCache()
    for start, end in [(0, 21), *((n, n + 1) for n in range(21, 33)), (33, 40)]:
        close(model(ids[:, start:end], past_key_values=cache).logits, whole[:, start:end])
        assert cache.get_seq_length() == end
        assert held(cache) == [5, 2 + (end - 1) % 8 + 1] * 2
        assert held_tokens(model.config.pe, 4, end) == held(cache)
    with pytest.raises(ValueError, match="the cache of a layer with a window cannot be cropped"):
        cache.crop(-1)
    model = small("fox+window:5")
    out = model(tokens(1, 20), past_key_values=DynamicCache())
    assert held(out.past_key_values) == [5] * 4, "keys of two layers, and the gates of each"


@torch.no_grad()
def test_generation_with_a_window_and_beams_equals_recomputation() -> None:
    model = small(SCHEDULES[0], num_hidden_layers=4)
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    common: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False,
                              "eos_token_id": None}  # fmt: skip
    for beams in (1, 3):
        cached = model.generate(ids, num_beams=beams, **common)
        assert torch.equal(cached, model.generate(ids, num_beams=beams, use_cache=False, **common))


class Parity(Encoding):
    """Hides keys by a rule that no window, chunk or count of first keys says."""

    hides = True

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        return (query - key) % 2 == 0


def test_kernels_say_which_windows_and_sinks_are_not_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose, "unavailable_reason", lambda device: None)
    cuda, dtype = torch.device("cuda"), torch.bfloat16
    two = Composite([encoding(f"chunk:{size}", **SIZES) for size in (4, 6)])
    for enc, reason in {
        encoding("path+window:4", **SIZES): "reads all keys, and has no window",
        encoding("cope+window:4+sinks:1", npos=5, **SIZES): "neither a sink nor first keys",
        encoding("cope+sink", npos=5, **SIZES): "neither a sink nor first keys",
        Parity(): "which keys it hides is known as a mask only",
        two: "which keys it hides is known as a mask only",
    }.items():
        assert reason in str(obstacle(enc, cuda, dtype, True, 16))
        narrow = enc.hides and key_range(enc) is not None
        assert path_for(enc, cuda, dtype, 64) == ("rows" if narrow else "matrix")
        q = torch.randn(1, 4, 9, 8)
        with pytest.raises(ValueError, match=f"'kernel' cannot serve .* here: .*{reason}"):
            pe.attend(enc, q, q[:, :2], q[:, :2], backend="kernel")
    sizes = SIZES | {"head_dim": 16}
    q = torch.randn(1, 4, 9, 16)
    with pytest.raises(ValueError, match="'kernel' cannot serve .* a sink needs that"):
        pe.attend(encoding("fire+sink", original_length=9, **sizes), q, q, q, backend="kernel")
    for spec in (
        "rope+window:4", "alibi+chunk:4+sinks:1", "rope+sink", "t5+window:4+sink", "cope+chunk:4",
    ):  # fmt: skip
        enc = encoding(spec, original_length=9, **sizes)
        assert path_for(enc, cuda, dtype, 64) == "kernel"


def test_large_biases_are_taken_by_rows_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    want = attended("alibi+window:3+sink")
    monkeypatch.setattr(choose, "LARGEST_MATRIX", 1)
    monkeypatch.setattr("pe.attention.rows.BLOCK", 4 * 9 * 2)
    torch.testing.assert_close(attended("alibi+window:3+sink", backend=None), want)


@pytest.mark.parametrize(
    ("spec", "layers", "want"),
    [
        ("rope", 2, ["rope"] * 2),
        ("3*(rope + window:512), nope", 8, [*["rope+window:512"] * 3, "nope"] * 2),
        ("2*(rope, nope), alibi", 5, ["rope", "nope", "rope", "nope", "alibi"]),
        ("rope(theta=1e4), nope", 2, ["rope(theta=10000.0)", "nope"]),
    ],
)
def test_a_schedule_lists_layers(spec: str, layers: int, want: list[str]) -> None:
    assert [joined(layer) for layer in layer_specs(spec, layers)] == want


def test_a_schedule_is_shown_by_titles() -> None:
    assert about("3*(rope+window:512), nope").title == "3 × (RoPE + window 512), NoPE"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rope,,nope", "expected the name of an encoding at character 6, which is where ',nope'"),
        ("3*(rope, nope", "a closing parenthesis at character 14, which is where the end is"),
        ("0*rope, nope", "a count of 1 or more at character 1"),
        ("rope(theta)", "expected = and a value of theta at character 11"),
        ("rope)", r"expected a comma or the end at character 5, which is where '\)' begins"),
        ("2000*rope", "at most 1024 layers at character 1"),
        ("rope(thta=2)", "no option 'thta' .did you mean 'theta'"),
        ("rope+window", "window needs a number, as in 'window:512'"),
        ("rope+window:x", "'x' is not a whole number; write 'window:512'"),
        ("rope+window:0", "^window:0: expected 1 or more, where window:1 shows each token itself"),
        ("nope+chunk:-3", "^chunk:-3: expected 1 or more"),
        ("window:4+sinks:0", "^sinks:0: expected 1 or more, where sinks:1 keeps the first token"),
        ("rope+window:2.5", "'2.5' is not a whole number"),
        ("nope, rope+window:0", "^'nope, rope.window:0', layer 2 of 2: window:0: expected 1 or"),
        (
            "3*rope, nop",
            "^'3.rope, nop', layer 4 of 4: unknown encoding 'nop' .did you mean 'nope'",
        ),
        ("rope, rope+alibi(a=1)", "layer 2 of 2: alibi has no option 'a'"),
        ("rope+randomized+window:5", "random positions, .* leave out randomized or window"),
        ("randomized+chunk:5+sinks:2", "random positions, .* leave out randomized or chunk"),
        ("llama4", "layer 1 of 4: chunk:8192: a training length of 1024 tokens does not fill one"),
        ("yarn:4", "yarn takes no number"),
        ("rope+sinks:4", "sinks keeps keys visible that a window or a chunk hides"),
        ("nope+window:4+alibi", "nope means no encoding"),
        ("nope, sinusoidal", "sinusoidal acts on the token embeddings, once for all layers"),
        ("rope+windw:4", "unknown encoding 'windw' .did you mean 'window'"),
    ],
)
def test_mistakes_in_a_spec_are_shown_with_their_place(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(spec, original_length=1024)


def test_a_chunk_is_filled_by_the_training_length() -> None:
    assert PEConfig(pe="rope+chunk", pe_options={"chunk": 256}).max_position_embeddings == 256
    with pytest.raises(ValueError, match="chunk:257: .* use chunk:256 or less, or train at 257 t"):
        PEConfig(pe="rope+chunk", pe_options={"chunk": 257})
    check("llama4")  # of no training length in particular


def test_an_option_is_given_once() -> None:
    with pytest.raises(ValueError, match="theta is given in the spec and among the options"):
        check("rope(theta=1e6), nope", {"theta": 1e4})
    first, _, last = layer_encodings("rope, nope, rope(layout=interleaved)", 3, theta=7.0, **SIZES)
    assert (first.theta, last.theta, last.layout) == (7.0, 7.0, "interleaved")


def test_a_schedule_fits_its_layers() -> None:
    with pytest.raises(ValueError, match="lists 4 layers, which does not fit 6") as error:
        PEConfig(pe="3*rope, nope", num_hidden_layers=6)
    example = str(error.value).rpartition("as in ")[2].strip("'")
    assert len(layer_specs(example, 6)) == 6


def test_layers_alike_share_what_is_not_per_layer() -> None:
    layers = layer_encodings("2*(t5+window:4+sink), t5", 6, original_length=24, **SIZES)
    assert len(layers) == 6
    assert layers[2] is layers[5]
    tables = {id(part) for enc in (0, 1, 3, 4) for part in layers[enc]._all if part.name == "t5"}
    sinks = {id(part) for enc in (0, 1, 3, 4) for part in layers[enc]._all if part.name == "sink"}
    assert (len(tables), len(sinks)) == (1, 4)


@torch.no_grad()
def test_a_schedule_is_saved_loaded_and_converted(tmp_path: Path) -> None:
    model, ids = small(SCHEDULES[0], num_hidden_layers=4), tokens(1, 12)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.pe == SCHEDULES[0]
    assert torch.equal(again.eval()(ids).logits, model(ids).logits)
    dropped = pe.convert(model, "nope")
    assert not dropped.model.encodings[0].hides
    back = pe.convert(dropped, "3*(rope+window:99), nope")
    wide = pe.convert(model, "3*(rope), nope")
    close(back(ids).logits, wide(ids).logits)
    assert len(parse(wide.config.pe)) == 4


def test_a_schedule_is_trained_and_evaluated_as_any_encoding(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 3000)
    spec = "rope+window:16+sink, nope"
    recipe = pe.recipe(
        "demo", pe=spec, corpus=str(tmp_path / "text.txt"), num_hidden_layers=2, steps=2,
        context_length=64, batch_size=2, hidden_size=32, intermediate_size=64, vocab_size=304,
        target_tokens=32, evaluation_windows=2, retrieval_samples=0,
    )  # fmt: skip
    run = pe.train(Run(tmp_path / "run", recipe), quiet=True)
    assert run.read()["model"]["attention"] == "matrix"
    assert run.read()["model"]["encoding_parameters"] == recipe.num_attention_heads
    pe.evaluate(run, quiet=True)
    assert run.read()["status"] == "complete"


def test_conversion_goes_on_with_what_a_spec_states() -> None:
    model = small("rope(theta=1e6)+window:5, nope")
    assert pe.convert(model, "rope").config.pe_options == {"theta": 1e6}
    assert pe.convert(model, "rope(theta=5.0), nope").config.pe_options == {}
    assert pe.convert(model, "alibi+window").config.pe_options == {"window": 5}
    dual = small("rope(theta=1e4)+window:5, rope(theta=1e6)")
    with pytest.raises(ValueError, match="theta differs between the layers of"):
        pe.convert(dual, "rope")
    assert pe.convert(dual, "rope", theta=7.0).config.pe_options == {"theta": 7.0}
    assert pe.convert(dual, "nope").config.pe_options == {}


def test_logit_scales_go_by_the_keys_that_are_shown() -> None:
    """SSMax in a window is a softmax over w keys, wherever the query is."""
    sizes = SIZES | {"original_length": 64}
    where = torch.arange(11)
    alone: Any = encoding("ssmax", **sizes).logit_scale
    for window in ("window:3", "chunk:4", "window:3+sinks:2", "chunk:4+window:3", "window:99"):
        enc = encoding(f"rope+ssmax+{window}", **sizes)
        seen = enc.narrow(None, 11, 11, where.device)[0, 0].sum(-1)
        torch.testing.assert_close(enc.logit_scale(where), alone(seen - 1), msg=window)
        assert torch.equal(enc.logit_scale(where[None])[0], enc.logit_scale(where))
    scale = encoding("nope+temperature:4", **sizes).logit_scale(where)
    want = 1 + 0.1 * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).log()
    torch.testing.assert_close(scale[0], want.repeat_interleave(4)[:11])


def test_the_picture_of_a_schedule_shows_what_its_layers_see() -> None:
    rows, length = layer_rows("3*(rope(theta=5.0)+window:6+sinks:2), nope, rope+chunk:7+sink")
    assert length == 28
    assert [row.spans for row in rows] == [*[[(0, 2), (22, 28)]] * 3, [(0, 28)], [(21, 28)]]
    titles = ["RoPE + window 6 + sinks 2", "NoPE", "RoPE + chunk 7 + sink logit"]
    spec = "3*(rope(theta=5.0)+window:6+sinks:2), nope, rope+chunk:7+sink"
    (axes,) = pe.figures.schedule(spec, 10).axes
    assert [text.get_text() for text in axes.texts] == titles
    assert axes.get_ylabel() == "layer\n(2 times)"
    dual, _ = layer_rows("rope(theta=5.0), rope(theta=7.0)")
    assert [row.title for row in dual] == ["RoPE(theta=5.0)", "RoPE(theta=7.0)"]
    with pytest.raises(ValueError, match="does not fit 3"):
        pe.figures.schedule("rope, nope", 3)


SHORTER = {"factor": 4.0, "original_length": 16}
"""Options of YaRN with another length than that of the training."""


def test_the_page_of_a_run_shows_a_schedule_and_nothing_of_a_plain_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    for spec, pictures in {"rope": 0, "3*(rope+window:32), nope": 1, "rope+window:8": 2}.items():
        page.plan(Run(tmp_path / "run", pe.recipe("demo", pe=spec)))
        assert len(shown) == pictures, spec
    assert "keys that token 128 sees" in shown[0].data
    page.plan(Run(tmp_path / "run", pe.recipe("demo", pe="yarn", pe_options=SHORTER)))


@torch.no_grad()
def test_some_layers_are_dropped_or_extended_and_the_others_stay() -> None:
    model, ids = small("3*(rope(theta=100.0)+window:9), rope", num_hidden_layers=4), tokens(1, 12)
    kept = "3*(rope(theta=100.0)+window:9)"
    for spec, layer in (("nope", 3), ("rope+yarn(factor=4.0, original_length=24)", 3)):
        new = pe.convert(model, f"{kept}, {spec}")
        encodings = [new.model.encodings[n] for n in new.model.encoding_of]
        assert all(enc.hides for enc in encodings[:layer])
        assert not encodings[layer].hides
        for key, value in model.state_dict().items():
            assert torch.equal(new.state_dict()[key], value)
        assert (new(ids).logits - model(ids).logits).abs().max() > 1e-4
        frequencies = [m.model.encodings[0]._all[0].inv_freq for m in (new, model)]
        assert torch.equal(*frequencies)
    same = pe.convert(pe.convert(model, f"{kept}, nope"), f"{kept}, rope")
    close(same(ids).logits, model(ids).logits)


def test_a_compiler_sees_one_op_for_what_a_window_shows() -> None:
    """torch 2.11 failed on a GPU when it reasoned about the arithmetic behind it."""
    traced: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        traced.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def rows(x: Tensor) -> Tensor:
        return spans(KeyRange(window=4), x.shape[1], x.device).rows

    x = torch.zeros(1, 9)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(rows, backend=keep, fullgraph=True)(x), rows(x))
    assert traced == ["pe.spans.default"], "no arange, minimum or stack beside it"
