"""What the tests of all attention kernels share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import pe
from pe.attention import choose
from pe.encodings import Encoding
from pe.model import PEForCausalLM
from pe.model.config import PEConfig


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make memory that a kernel does not write not a number."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def filled(*sizes: Any, **options: Any) -> Tensor:
            made = make(*sizes, **options)
            return made.fill_(math.nan if made.is_floating_point() else 123456789)

        return filled

    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


def computed(
    enc: Encoding, backend: str, inputs: Sequence[Tensor], direction: Tensor
) -> dict[str, Tensor]:
    """Output, and gradients of q, k, v and the encoding's parameters by name.

    Those of the definition, the backend ``dense``, are in float64. In float32 it would be no judge
    of CoPE: where a count is a whole number but for rounding, the gradient jumps.
    """
    wide = torch.float64 if backend == "dense" else torch.float32
    q, k, v = (x.detach().to(wide).requires_grad_() for x in inputs)
    enc = copy.deepcopy(enc).to(wide)
    out = pe.attend(enc, q, k, v, backend=backend)
    of_encoding = {name.rpartition(".")[2]: x for name, x in enc.named_parameters()}
    named = {"q": q, "k": k, "v": v} | of_encoding
    found = torch.autograd.grad((out * direction).sum(), list(named.values()))
    return {"out": out.detach()} | dict(zip(named, found, strict=True))


def agree(fast: Mapping[str, Tensor], exact: Mapping[str, Tensor], rounding: float = 1e-6) -> None:
    """Compare norms of differences; ``rounding`` is allowed where the exact value is 0."""
    for name, want in exact.items():
        assert torch.isfinite(fast[name]).all(), name
        error = float((fast[name] - want).norm())
        assert error <= 2e-5 * float(want.norm()) + rounding, (name, error, float(want.norm()))


def path_on_a_gpu(monkeypatch: pytest.MonkeyPatch, spec: str, width: int) -> str:
    """Return how a GPU on which the kernels run would compute attention in bfloat16."""
    monkeypatch.setattr(choose, "unavailable_reason", lambda device: None)
    enc = pe.encoding(spec, hidden_size=32, head_dim=16, num_heads=2, original_length=24)
    return choose.path_for(enc, torch.device("cuda", 0), torch.bfloat16, 32, head_dim=width)


def language_loss(model: PEForCausalLM, ids: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def on_both(
    spec: str,
    tokens: int = 20,
    loss_of: Callable[[PEForCausalLM, Tensor], Tensor] = language_loss,
    change: Callable[[PEForCausalLM], None] | None = None,
    **sizes: int,
) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    """Yield names, and the gradients of a small model on kernels and on matrices; and its losses.

    ``change`` is applied to the model before; ``sizes`` are further fields of its configuration.
    """
    found = []
    ids = torch.randint(0, 40, (2, tokens), generator=torch.Generator().manual_seed(1))
    shape = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 32} | sizes
    for backend in ("kernel", "sdpa"):
        torch.manual_seed(0)
        model = PEForCausalLM(PEConfig(
            vocab_size=40, intermediate_size=48, num_hidden_layers=2, pe=spec,
            attention_backend=backend, **shape,
        ))  # fmt: skip
        if change is not None:
            change(model)
        loss = loss_of(model, ids)
        loss.backward()
        found.append({n: p.grad for n, p in model.named_parameters()} | {"loss": loss.detach()})
    for name, fast in found[0].items():
        yield name, fast, found[1][name]


def catches(
    monkeypatch: pytest.MonkeyPatch, module: Any, function: str, which: int,
    arguments: tuple[Any, ...], message: str,
) -> None:  # fmt: skip
    """Check that a self-check passes, and not if a result of ``function`` is wrong by a percent."""
    module.self_check.__wrapped__(*arguments)
    compute = getattr(module, function)

    def wrong(*inputs: Any) -> tuple[Tensor, ...]:
        found = list(compute(*inputs))
        found[which] = 1.01 * found[which]
        return tuple(found)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, wrong)
        with pytest.raises(RuntimeError, match=message):
            module.self_check.__wrapped__(*arguments)
