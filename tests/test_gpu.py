"""What only a CUDA device can show. Run there: ``PE_TEST_GPU=1 pytest tests/test_gpu.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pe
from pe.runs import Run
from pe.training.build import autocast, build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device, or PE_TEST_GPU=1 is not set"
    ),
]
ENCODINGS = ["nope", "rope", "yarn", "pope"]
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


@pytest.mark.parametrize("spec", ENCODINGS)
def test_a_compiled_step_has_the_loss_and_gradients_of_the_eager_one(spec: str) -> None:
    recipe = pe.recipe("demo", pe=spec)
    text = torch.randint(0, recipe.vocab_size, (4, 257), device=CUDA)
    found = []
    for compiled in (False, True):
        model = build_model(recipe, recipe.vocab_size).to(CUDA).train()
        if compiled:
            model.compile()
        with autocast(recipe, CUDA):
            loss = model(input_ids=text[:, :-1], shift_labels=text[:, 1:]).loss
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (eager, eager_gradients), (fast, fast_gradients) = found
    assert abs(float(eager - fast)) < 2e-3
    for name, gradient in eager_gradients.items():
        assert ratio(fast_gradients[name], gradient) < 0.05, name


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
