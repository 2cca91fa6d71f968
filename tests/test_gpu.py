"""What only a CUDA device can show. Run there: ``PE_TEST_GPU=1 pytest tests/test_gpu.py``."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pe
from pe.devices import autocast
from pe.encodings.cope import CoPE
from pe.encodings.core import clex_ode
from pe.model import PEConfig, PEForCausalLM
from pe.runs import Run
from pe.training.build import build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device, or PE_TEST_GPU=1 is not set"
    ),
]
ENCODINGS = ["nope", "rope", "yarn", "partial", "pope", "xpos", "fope"]
BIASED = [
    "alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "dape", "path",
    "rope+alibi", "stickbreaking", "relative_content",
]  # fmt: skip
WINDOWED = [
    "rope+window:512", "nope+window:100+sinks:4+sink", "pope+chunk:300", "rope+sink",
    "alibi+window:512+sinks:4", "t5+window:200+sink", "t5+sink", "fire+window:300",
    "kerple_log+chunk:256+sinks:3", "kerple_power+window:300", "fox+window:512+sink",
    "stickbreaking+window:300", "stickbreaking+window:512+sinks:4", "cope+window:512",
    "cope(npos=64)+chunk:300", "relative_content+window:512",
    "relative_content(reach=40)+chunk:300",
]  # fmt: skip
HIDDEN = 48
CUDA = torch.device("cuda")


def ratio(out: torch.Tensor, reference: torch.Tensor) -> float:
    out, reference = out.detach().double(), reference.detach().double()
    return float((out - reference).norm() / reference.norm())


@pytest.mark.parametrize("spec", ENCODINGS)
@pytest.mark.parametrize("length", [1, 15, 128, 257, 1000])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 4, 64), (8, 2, 32), (1, 1, 128)])
def test_sdpa_on_cuda_agrees_with_the_dense_definition_forward_and_backward(
    spec: str, length: int, heads: int, kv_heads: int, width: int
) -> None:
    enc = pe.encoding(
        spec, head_dim=width, num_heads=heads, num_kv_heads=kv_heads, original_length=64
    ).to(CUDA)
    positions = torch.arange(length, device=CUDA)
    results = {}
    for backend, dtype in (("dense", torch.float32), ("sdpa", torch.bfloat16)):
        generator = torch.Generator(device=CUDA).manual_seed(length)
        shapes = ((heads, length), (kv_heads, length), (kv_heads, length))
        inputs = [
            torch.randn(2, h, t, width, device=CUDA, generator=generator).to(torch.bfloat16)
            for h, t in shapes
        ]
        q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
        out = pe.attend(enc, q, k, v, positions, positions, backend=backend)
        upstream = torch.randn(out.shape, device=CUDA, generator=generator)
        gradients = torch.autograd.grad(out, (q, k, v), upstream.to(out.dtype))
        results[backend] = [out, *gradients]
    for name, fast, exact in zip("o q k v".split(), results["sdpa"], results["dense"], strict=True):
        assert torch.isfinite(fast).all()
        if exact.norm() < 1e-5:  # one key: the output does not depend on q or k
            assert fast.norm() < 1e-2, name
        else:
            assert ratio(fast, exact) < 1.5e-2, name


def away_from_bends(enc: pe.Encoding, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(B, H, T, 1): queries whose counts keep away from whole numbers.

    There the rise that a count reads from CoPE's table jumps, and so do gradients: whoever rounds
    counts otherwise gets others. Without such queries no rounding is an excuse.
    """
    cope = next(part for part in enc.modules() if isinstance(part, CoPE))
    mask = enc.narrow(None, q.shape[2], k.shape[2], q.device) if enc.hides else None
    rows = []
    for some, keys in zip(q.detach().double(), k.detach().double(), strict=True):
        gates = cope.gates(some[None], keys[None], mask=mask)
        counts = gates.flip(-1).cumsum(-1).flip(-1)
        whole = counts.round()
        bends = ((counts - whole).abs() < 2e-4) & (whole > 0) & (whole < cope.npos)
        rows.append(~(bends & (gates > 0)).any(-1, keepdim=True))
    return torch.cat(rows)


def attended(
    spec: str, backend: str | None, length: int, heads: tuple[int, int], width: int, seed: int = 0,
    bends: bool = False, **options: Any,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Output and every gradient; wide where it is the definition and else in bfloat16.

    CoPE's is wider: counts that are added up in float32 are no more exact than those it judges.
    ``bends``: with the gradients of queries for which no two roundings need agree.
    """
    torch.manual_seed(seed)
    enc = pe.encoding(
        spec, head_dim=width, num_heads=heads[0], num_kv_heads=heads[1], hidden_size=HIDDEN,
        original_length=1024, **options,
    ).to(CUDA)  # fmt: skip
    enc.reset_parameters(torch.Generator(CUDA).manual_seed(seed))
    generator = torch.Generator(CUDA).manual_seed(seed + length)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=CUDA, generator=generator)

    with torch.no_grad():
        for parameter in enc.parameters():
            if not parameter.any():  # CoPE's table: with zeros, no gate would have a gradient
                parameter.copy_(drawn(*parameter.shape))
    counts = spec.startswith("cope")
    wide = torch.float64 if counts else torch.float32
    dtype = wide if backend == "dense" else torch.bfloat16
    enc = enc.to(wide) if backend == "dense" else enc
    sizes = (heads[0], heads[1], heads[1])
    q, k, v = (drawn(2, h, length, width).bfloat16().to(dtype).requires_grad_() for h in sizes)
    x = drawn(2, length, HIDDEN).requires_grad_()
    out = pe.attend(enc, q, k, v, backend=backend, layer_input=x)
    learned = {n: p for n, p in enc.named_parameters() if p.requires_grad}
    named = {"q": q, "k": k, "v": v, "x": x, **learned}
    upstream = drawn(*out.shape).bfloat16()
    if counts and not bends:
        upstream *= away_from_bends(enc, q, k)
    found = torch.autograd.grad(out, list(named.values()), upstream.to(dtype), allow_unused=True)
    return {"out": out.detach()} | {
        name: torch.zeros_like(t) if g is None else g
        for (name, t), g in zip(named.items(), found, strict=True)
    }


@pytest.mark.parametrize("spec", ["nope", "pope", *BIASED])
@pytest.mark.parametrize("length", [1, 15, 128, 257, 1000, 4096])
@pytest.mark.parametrize(
    ("heads", "width"), [((4, 4), 64), ((8, 2), 32), ((1, 1), 128), ((12, 12), 64)]
)
def test_kernels_on_cuda_agree_with_the_definition(
    spec: str, length: int, heads: tuple[int, int], width: int
) -> None:
    if length == 4096 and heads[0] > 4:
        pytest.skip("the definition would need too much memory")
    if spec == "pope" and width == 128:
        pytest.skip("its queries would be 256 wide")
    if spec == "cope" and width == 128:
        pytest.skip("its kernel takes heads up to 64")
    for seed in (0, 1):
        fast = attended(spec, "kernel", length, heads, width, seed)
        agree(fast, attended(spec, "dense", length, heads, width, seed))


@pytest.mark.parametrize("spec", WINDOWED)
@pytest.mark.parametrize("length", [1, 257, 1000, 4096])
@pytest.mark.parametrize(("heads", "width"), [((4, 2), 64), ((2, 2), 32), ((1, 1), 128)])
def test_windows_and_sinks_in_kernels_agree_with_the_definition(
    spec: str, length: int, heads: tuple[int, int], width: int
) -> None:
    if spec.startswith("pope") and width == 128:
        pytest.skip("its queries would be 256 wide")
    if spec.startswith("cope") and width == 128:
        pytest.skip("its kernel takes heads up to 64")
    fast = attended(spec, "kernel", length, heads, width)
    agree(fast, attended(spec, "dense", length, heads, width))


def test_hidden_keys_are_not_read() -> None:
    """Not a number in what all of the last queries' windows hide."""
    enc = pe.encoding("window:512", head_dim=64, num_heads=2).to(CUDA)
    q, k, v = (torch.randn(1, 2, 4096, 64, device=CUDA).bfloat16() for _ in range(3))
    k[:, :, :2048] = v[:, :, :2048] = math.nan
    assert torch.isfinite(pe.attend(enc, q, k, v)[:, :, 3072:]).all()


@pytest.mark.parametrize("spec", ["rope+window:512", "alibi+window:512+sinks:4+sink"])
def test_a_window_takes_memory_for_what_is_linear_in_the_length(spec: str) -> None:
    heads, length, width = 2, 16_384, 64
    enc = pe.encoding(spec, head_dim=width, num_heads=heads).to(CUDA)

    def step(tokens: int) -> None:
        shape = 1, tokens, heads, width
        drawn = [torch.randn(shape, device=CUDA).bfloat16().transpose(1, 2) for _ in range(3)]
        q, k, v = (x.requires_grad_() for x in drawn)
        pe.attend(enc, q, k, v).float().sum().backward()

    step(256)  # the first call compares the kernels with the definition
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(length)
    peak = torch.cuda.max_memory_allocated() - before
    tensor = heads * length * width * 2  # of 16 bits: q, k, v, o, their gradients, copies, float32
    numbers = 16 * 8 * length  # of spans: sixteen per token, while they are made
    allowed = 24 * tensor + numbers
    assert peak < allowed < length**2, (peak, allowed)  # a mask alone would be T x T bytes


@pytest.mark.parametrize(
    "spec", ["rope+window:100+sinks:2+sink", "alibi+window:100", "pope+chunk:90"]
)
@pytest.mark.parametrize("hidden", ["attention_mask", "document_ids"])
def test_a_model_with_windows_on_kernels_is_the_one_with_masks(spec: str, hidden: str) -> None:
    """Left padding of 70 tokens, or three documents, in a sequence of 300."""
    text = torch.randint(0, 512, (2, 300), device=CUDA)
    index = torch.arange(300, device=CUDA).expand(2, -1)
    inputs = {"document_ids": index // 120, "attention_mask": (index >= 70).long()}
    targets = torch.where(index >= 80, text.roll(-1, 1), -100)
    results = []
    for backend in (None, "sdpa"):
        recipe = pe.recipe("demo", pe=spec, vocab_size=512)
        model = build_model(recipe, 512).to(CUDA).train()
        for layer in model.model.layers:
            layer.attention.backend = backend
        with autocast(recipe.precision, CUDA):
            loss = model(text, shift_labels=targets, **{hidden: inputs[hidden]}).loss
        loss.backward()
        learned = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        results.append((loss.detach(), learned))
    (fast, gradients), (slow, wanted) = results
    assert abs(float(fast - slow)) < 2e-3
    largest = max(float(gradient.norm()) for gradient in wanted.values())
    for name, gradient in wanted.items():
        bound = 0.05 if gradient.numel() > 16 else 0.15
        off = float((gradients[name] - gradient).norm())
        assert off < bound * float(gradient.norm()) + 1e-4 * largest, name


def agree(fast: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> None:
    for name, want in exact.items():
        assert torch.isfinite(fast[name]).all(), name
        if want.norm() < 1e-3 * max(1.0, want.numel() ** 0.5):
            assert fast[name].norm() < 2e-2 * want.numel() ** 0.5, name
        else:
            assert ratio(fast[name], want) < 1.5e-2, name


@pytest.mark.parametrize("npos", [12, 64])
@pytest.mark.parametrize(
    ("length", "heads", "width"), [(257, (8, 2), 32), (1000, (4, 2), 64), (4096, (4, 2), 64)]
)
def test_cope_agrees_where_most_keys_are_beyond_its_table(
    length: int, heads: tuple[int, int], width: int, npos: int
) -> None:
    fast = attended("cope", "kernel", length, heads, width, npos=npos)
    agree(fast, attended("cope", "dense", length, heads, width, npos=npos))
    again = attended("cope", "kernel", length, heads, width, npos=npos)
    assert all(torch.equal(fast[name], again[name]) for name in fast)


@pytest.mark.parametrize("length", [250, 1000])
def test_cope_at_128_agrees_in_a_process_of_its_own(length: int) -> None:
    """What `WIDEST` of CoPE waits for. A fault would end this process' use of the card."""
    code = (
        "import torch; from pe.attention.kernels.cope import op, self_check\n"
        f"self_check.LENGTH, cuda = {length}, torch.device('cuda')\n"
        "for kind in (torch.bfloat16, torch.float16):\n"
        "    op.self_check.__wrapped__(128, 128, kind, cuda)\n"
        "torch.cuda.synchronize()"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("spec", [*BIASED, *WINDOWED])
def test_kernels_give_the_same_bits_twice_and_write_everything(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_empty = torch.Tensor.new_empty

    def poisoned(self: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        made = new_empty(self, *size, **options)
        return made.fill_(math.nan if made.is_floating_point() else 123456789)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    first, second = (attended(spec, "kernel", 1000, (4, 2), 64) for _ in range(2))
    for name, found in first.items():
        assert torch.isfinite(found).all(), name
        assert torch.equal(found, second[name]), name


@pytest.mark.parametrize("spec", [*BIASED, *WINDOWED, "nope", "pope", "xpos", "fope"])
def test_memory_grows_with_the_length_and_not_with_its_square(spec: str) -> None:
    peaks = []
    for length in (4096, 8192, 16384):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attended(spec, None, length, (4, 4), 64, bends=True)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    # A T x T tensor would make it four times as much. Differences say less: a workspace of 32 MiB
    # may be what counts at the shortest length and not at the longest.
    assert peaks[2] < 2.2 * peaks[1], peaks


@pytest.mark.parametrize("spec", [*ENCODINGS, *BIASED, "rope+window:64+sinks:2+sink"])
def test_a_compiled_step_has_the_loss_and_gradients_of_the_eager_one(spec: str) -> None:
    recipe = pe.recipe("demo", pe=spec)
    text = torch.randint(0, recipe.vocab_size, (4, 257), device=CUDA)
    found = []
    for compiled in (False, True):
        model = build_model(recipe, recipe.vocab_size).to(CUDA).train()
        if compiled:
            model.compile(fullgraph=True)  # raises where the compiler has to stop
        with autocast(recipe.precision, CUDA):
            loss = model(input_ids=text[:, :-1], shift_labels=text[:, 1:]).loss
        loss.backward()
        learned = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        found.append((loss.detach(), learned))
    (eager, eager_gradients), (fast, fast_gradients) = found
    assert abs(float(eager - fast)) < 2e-3
    largest = max(float(gradient.norm()) for gradient in eager_gradients.values())
    for name, gradient in eager_gradients.items():
        if gradient.norm() < 1e-6 * largest:  # nothing but what rounding left
            assert fast_gradients[name].norm() < 1e-5 * largest, name
        else:  # a single number's is a sum of both signs over all scores: much of it cancels
            bound = 0.05 if gradient.numel() > 1 else 0.15
            assert ratio(fast_gradients[name], gradient) < bound, name


@pytest.mark.parametrize(
    "spec", ["nope", "rope", "pope", "t5", "fire", "fox", "cope", "dape", "rope+alibi"]
)
def test_a_compiled_model_reads_a_prompt_as_the_eager_one(spec: str) -> None:
    recipe = pe.recipe("demo", pe=spec)
    text = torch.randint(0, recipe.vocab_size, (2, 300), device=CUDA)
    model = build_model(recipe, recipe.vocab_size).to(CUDA).eval()
    with torch.no_grad(), autocast(recipe.precision, CUDA):
        eager = model(input_ids=text, logits_to_keep=1, use_cache=False).logits
        model.compile(fullgraph=True)
        fast = model(input_ids=text, logits_to_keep=1, use_cache=False).logits
    assert ratio(fast, eager) < 0.02


@pytest.mark.parametrize("activation", clex_ode.ACTIVATIONS)
@pytest.mark.parametrize(("pairs", "width"), [(16, 32), (24, 48), (32, 64), (64, 128)])
def test_the_equation_of_clex_is_solved_as_by_the_loop(
    activation: str, pairs: int, width: int
) -> None:
    from pe.attention.kernels import clex

    start, origin = (torch.randn(pairs, device=CUDA, dtype=torch.float64) - 3 for _ in range(2))
    up = torch.randn(pairs, width, device=CUDA, dtype=torch.float64) / pairs**0.5
    down = torch.randn(width, pairs, device=CUDA, dtype=torch.float64) / width**0.5
    upstream = torch.randn(16, pairs, device=CUDA, dtype=torch.float64)
    given = (start, origin, up, down, torch.tensor(11, device=CUDA), 16, 10, activation)
    found = clex.solve_by_kernel(*given), *clex.gradient_by_kernel(upstream, *given)
    clex.self_check(pairs, width, activation, CUDA)
    assert torch.equal(clex_ode.solve(*given), found[0])  # the operator, which has the kernel here
    wanted = clex_ode.solve_by_steps(*given), *clex_ode.gradient_by_steps(upstream, *given)
    for mine, right in zip(found, wanted, strict=True):
        assert ratio(mine, right) < 1e-9


@pytest.mark.parametrize("spec", ["nope", "pope", "t5"])
def test_a_deterministic_run_ends_with_the_same_bits_as_another(spec: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{i} times {i} is {i * i}." for i in range(20_000)))
    recipe = pe.recipe(
        "demo", pe=spec, corpus=str(text), vocab_size=512, steps=12, deterministic=True,
        validate_every=0, context_length=1024, evaluation_lengths=[1024],
    )  # fmt: skip
    weights = []
    for name in ("one", "other"):
        run = Run(tmp_path / name / recipe.run_name(), recipe)
        pe.train(run, quiet=True)
        (file,) = run.directory.glob("checkpoint/*.safetensors")
        weights.append(file.read_bytes())
    assert weights[0] == weights[1]


def test_phases_stay_exact_far_away_on_the_device() -> None:
    enc = pe.encoding("rope", head_dim=64, num_heads=1).to(CUDA).to(torch.bfloat16)
    far = torch.tensor([100_000], device=CUDA)
    q = torch.zeros(1, 1, 1, 64, device=CUDA)
    q[..., :32] = 1.0
    with torch.autocast("cuda", dtype=torch.bfloat16):
        turned, _ = enc.rotate(q, q, far, far)
    phase = 100_000 * 10000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)
    assert torch.allclose(turned[0, 0, 0, :32].double().cpu(), phase.cos(), atol=1e-6)


def test_a_run_on_the_device_resumes_and_records_its_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{i} times {i} is {i * i}." for i in range(20_000)))
    recipe = pe.recipe(
        "demo", pe="pope", corpus=str(text), vocab_size=512, steps=20, checkpoint_every=5,
        evaluation_lengths=[256, 512], evaluation_windows=4, validate_every=0,
    )  # fmt: skip
    run = Run(tmp_path / "runs" / "gpu" / recipe.run_name(), recipe)
    pe.train(run, quiet=True)
    evaluation = pe.evaluate(run, quiet=True)
    record = run.read()
    assert record["hardware"]["device"] == "cuda"
    assert record["training"]["final_loss"] < 5.0
    assert record["training"]["peak_memory_gib"] > 0
    assert evaluation["perplexity"]["256"]["value"] < 512


def test_self_extend_reads_a_long_text_without_a_matrix() -> None:
    enc = pe.encoding("self_extend", head_dim=64, num_heads=8, original_length=512, factor=8.0)
    enc = enc.cuda()
    q, k, v = (torch.randn(1, 8, 4000, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        apart = pe.attend(enc, q, k, v)
        assert torch.cuda.max_memory_allocated() - before < 8 * 4000**2
        want = pe.attend(enc, q, k, v, backend="dense")
    assert (apart - want).abs().max() < 0.03


@pytest.mark.parametrize("name", ["learned", "t5", "fire", "rope+alibi"])
def test_weights_are_drawn_alike_on_the_device_and_off_it(name: str) -> None:
    config = PEConfig(vocab_size=64, hidden_size=32, num_attention_heads=2,
                               num_hidden_layers=1, intermediate_size=48, pe="nope")  # fmt: skip
    model = PEForCausalLM(config)
    off = pe.convert(model, name, seed=3).state_dict()
    on = pe.convert(model.cuda(), name, seed=3)
    assert all(p.is_cuda for p in on.parameters())
    for key, value in on.state_dict().items():
        assert torch.equal(value.cpu(), off[key]), key


@pytest.mark.parametrize("name", ["learned", "rope", "pope", "alibi", "t5", "sandwich", "fire",
                                  "cope", "fox", "kerple_log"])  # fmt: skip
def test_replayed_steps_of_many_models_are_those_that_are_called_one_by_one(name: str) -> None:
    from pe.tasks.measure.many import Many, Member
    from pe.tasks.measure.record import Settings

    task = pe.tasks.task("copy", train_lengths=(2, 20), ood_lengths=(21, 24))
    members = [Member(0, 1e-3), Member(1, 3e-3)]
    settings = Settings(width=64, heads=2, feedforward=96, batch_size=8)
    replayed, called = (Many(task, name, members, settings) for _ in range(2))
    called._replayed = None
    losses = [torch.stack([many.step() for _ in range(12)]) for many in (replayed, called)]
    assert replayed.refusal == ""
    assert replayed._replayed is not None
    assert replayed._replayed._graphs, "some steps were replayed"
    assert torch.allclose(*losses, rtol=1e-3)
