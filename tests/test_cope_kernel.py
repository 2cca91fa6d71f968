"""CoPE's kernels, interpreted on the CPU, against the definition: values and every gradient.

On a GPU the cases of the other kernels run with CoPE among them: tests/test_gpu.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cope_cases import computed, made
from kernel_cases import agree, catches, on_both, poison
from torch import Tensor

import pe
from pe.attention import choose
from pe.attention.choose import path_for
from pe.attention.kernels.cope import launch as cope_launch
from pe.attention.kernels.cope import op as cope_ops
from pe.attention.kernels.cope import self_check as cope_check
from pe.attention.kernels.flash.launch import Shown
from pe.attention.spans import spans
from pe.encodings.cope import CoPE
from pe.encodings.core.composite import Composite
from pe.encodings.core.forms import COUNTS, NONE, ROWS
from pe.encodings.core.key_range import KeyRange
from pe.encodings.relative_content import RelativeContent
from pe.model import PEForCausalLM


@pytest.mark.parametrize(
    ("length", "npos"),
    [(1, 2), (1, 9), (65, 12), (65, 66), (128, 129), (200, 24)],
)
def test_kernels_agree_with_the_definition(length: int, npos: int) -> None:
    """With fewer rows than tokens, counts reach the last row of the table within the text."""
    enc = made(32, npos)
    case: dict[str, Any] = {"length": length, "heads": 2, "kv": 1, "width": 32}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))


@pytest.mark.parametrize(
    ("heads", "kv", "width", "divide", "seed", "spread"),
    [(4, 2, 64, True, 3, 1.0), (1, 1, 64, False, 4, 1.0), (3, 1, 16, False, 5, 6.0)],
)
def test_kernels_agree_for_other_heads_widths_and_options(
    heads: int, kv: int, width: int, divide: bool, seed: int, spread: float
) -> None:
    """Spread out sixfold, gates are as good as open or shut."""
    enc = made(width, 31, divide, seed)
    case: dict[str, Any] = {
        "length": 97,
        "heads": heads,
        "kv": kv,
        "width": width,
        "seed": seed,
        "spread": spread,
    }
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))


@pytest.mark.parametrize(
    ("hidden", "length", "npos", "heads"),
    [("window:1", 33, 9, 1), ("window:40", 150, 80, 2), ("window:100", 230, 12, 1),
     ("chunk:90", 190, 200, 1), ("window:300", 70, 30, 1), ("window:7+chunk:10", 65, 20, 1)],
)  # fmt: skip
def test_kernels_agree_in_windows_and_chunks(
    hidden: str, length: int, npos: int, heads: int
) -> None:
    """Tables of 12 and 30 rows end within the window, and the others beyond it."""
    enc = made(16, npos)
    case: dict[str, Any] = {
        "length": length, "heads": heads, "kv": 1, "width": 16, "hidden": hidden
    }  # fmt: skip
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case), rounding=5e-6)


@pytest.mark.parametrize("npos", [20, 21, 64])
def test_the_rows_that_a_window_can_reach_are_kept(npos: int) -> None:
    """All gates are 1, so a window of 20 counts to 20, the last row of the table or one of many."""

    def opened(q: Tensor, k: Tensor) -> None:
        q[..., 0] = k[..., 0] = 20.0

    enc = made(16, npos)
    case: dict[str, Any] = {"length": 50, "heads": 1, "kv": 1, "width": 16}
    case |= {"hidden": "window:20", "change": opened}
    fast = computed(enc, "kernel", **case)
    agree(fast, computed(enc, "dense", **case))
    assert fast["table"][19:21].abs().amin() > 0
    assert fast["table"][21:].abs().sum() == 0


def test_keys_that_a_window_hides_are_not_read() -> None:
    torch.manual_seed(0)
    q, k, v, gradient = (torch.randn(1, 1, 200, 16) for _ in range(4))
    table, shown = torch.randn(60, 16), Shown(*spans(KeyRange(40), 200, torch.device("cpu")))
    results = cope_launch.forward(q, k, v, table, 0.25, shown)
    q[:, :, 128:] = gradient[:, :, 128:] = math.nan  # of query blocks that see keys from 89 on
    _, dk, dv, _ = cope_launch.backward(gradient, q, k, v, *results, table, 0.25, shown)
    assert torch.isfinite(dk[:, :, :64]).all()
    assert torch.isfinite(dv[:, :, :64]).all()
    q, gradient = (torch.randn(1, 1, 200, 16) for _ in range(2))
    k[:, :, :64] = math.nan
    out, *_ = cope_launch.forward(
        q, k, v.index_fill(2, torch.arange(64), math.nan), table, 0.25, shown
    )
    assert torch.isfinite(out[:, :, 128:]).all()
    results = cope_launch.forward(q, k, v, table, 0.25, shown)
    dq, *_ = cope_launch.backward(gradient, q, k, v, *results, table, 0.25, shown)
    assert torch.isfinite(dq[:, :, 128:]).all()


@pytest.mark.parametrize("length", [127, 128])
def test_the_last_row_that_is_counted_to_has_its_gradient(length: int) -> None:
    """Gates are 1/2: counts end around 64, where another tile of the table begins."""
    enc = made(16, 200)
    case: dict[str, Any] = {"length": length, "heads": 1, "kv": 1, "width": 16, "key_size": 0.0}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))


@pytest.mark.parametrize(
    ("heads", "kv", "batch", "pieces"), [(4, 2, 2, 1), (4, 2, 2, 2), (6, 3, 1, 2)]
)
def test_a_long_sequence_is_done_a_few_heads_at_a_time(
    heads: int, kv: int, batch: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that end within a sequence, and shares of the gradient of keys that are added up.

    In the last case the pieces have two key heads and then one.
    """
    enc = made(16, 20)
    case = {"length": 70, "heads": heads, "kv": kv, "width": 16, "batch": batch}
    exact = computed(enc, "dense", **case)
    monkeypatch.setattr(cope_launch, "HELD", pieces * 70 * 32 * 2)
    agree(computed(enc, "kernel", **case), exact)


def test_memory_does_not_grow_with_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs leave a table's gradient each; those of one piece are added up before the next."""
    new_empty, tables = Tensor.new_empty, []

    def watched(self: Tensor, *size: Any, **options: Any) -> Tensor:
        found = new_empty(self, *size, **options)
        if found.shape[-2:] == (71, 16):
            tables.append(found.numel())
        return found

    monkeypatch.setattr(Tensor, "new_empty", watched)
    monkeypatch.setattr(cope_launch, "SPLITS", 2)
    case: dict[str, Any] = {"length": 70, "heads": 2, "kv": 2, "width": 16}
    for pieces in (1, 2):
        monkeypatch.setattr(cope_launch, "HELD", 2 * 70 * 96 // pieces)
        computed(made(16, 71), "kernel", **case)
    assert tables == [2 * 71 * 16] * 2


@pytest.mark.parametrize(("hidden", "npos"), [(None, 12), ("window:40", 60)])
def test_every_number_is_written(
    hidden: str | None, npos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    enc = made(16, npos)
    case: dict[str, Any] = {"length": 140, "heads": 2, "kv": 1, "width": 16, "hidden": hidden}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))


def test_counts_are_as_fine_as_32_bits_allow() -> None:
    for length in (1, 1000, 1024, 16384, 2**17):
        assert (length + 1) << cope_launch.bits(length) < 2**31
    assert cope_launch.bits(1024) == 20
    assert cope_launch.bits(100) == 22  # as much as two halves of 11 bits hold


def test_only_counts_that_can_be_reached_are_looked_up() -> None:
    enc = made(16, 500)
    form = enc.bias_form(10, torch.device("cpu"), None)
    assert form.own is not None
    assert form.own.shape == (12, 16)
    assert torch.allclose(form.own, enc.table[:12] / 4)


def test_what_turns_or_scales_queries_keeps_cope_from_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose, "unavailable_reason", lambda device: None)
    cuda, options = torch.device("cuda", 0), {"head_dim": 16, "num_heads": 2, "original_length": 24}
    for spec, path in (
        ("cope", "kernel"), ("cope+rope", "matrix"), ("cope+ssmax", "matrix"),
        ("cope+alibi", "matrix"), ("sinusoidal+cope", "kernel"),
    ):  # fmt: skip
        enc = pe.encoding(spec, hidden_size=32, **options)
        assert path_for(enc, cuda, torch.bfloat16, 64, head_dim=16) == path, spec


def test_a_class_that_does_not_name_the_kind_of_its_bias_is_refused() -> None:
    """Nobody would know that its kernel keeps no first keys in a window, or reads bfloat16."""

    class Unnamed(CoPE):
        form_kind = NONE

    class AlsoUnnamed(RelativeContent):
        form_kind = NONE

    window = pe.encoding("window:3", head_dim=16, num_heads=2)
    q, x = torch.randn(1, 2, 9, 16), torch.randn(1, 9, 8)
    for enc, kind in ((Unnamed(16, npos=9), COUNTS), (AlsoUnnamed(2, 8, 9), ROWS)):
        with pytest.raises(ValueError, match=f"set form_kind = {kind} in the class"):
            pe.attend(Composite([enc, window]), q, q, q, backend="kernel", layer_input=x)


def test_heads_of_128_count_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may reach it there, not even the check: a fault would end the process' device."""
    monkeypatch.setattr(choose, "unavailable_reason", lambda device: None)
    enc, cuda = CoPE(128, npos=9), torch.device("cuda", 0)
    assert path_for(enc, cuda, torch.bfloat16, 64, head_dim=128) == "matrix"
    assert path_for(enc, cuda, torch.bfloat16, 2**15, 8, head_dim=128) == "rows"
    assert path_for(CoPE(64, npos=9), cuda, torch.bfloat16, 64, head_dim=64) == "kernel"
    x = torch.randn(1, 1, 4, 128)
    with pytest.raises(ValueError, match=r"head_dim is 128 and must be one of \(16, 32, 64\)"):
        pe.attend(enc, x, x, x, backend="kernel")


def test_a_model_on_kernels_has_the_loss_and_gradients_of_one_on_matrices() -> None:
    @torch.no_grad()
    def fill(model: PEForCausalLM) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith("table"):
                parameter.normal_()

    found = list(on_both("cope", 33, change=fill))
    assert sum(name.endswith("table") for name, *_ in found) == 2
    for name, fast, slow in found:
        assert fast is not None, name
        assert slow is not None, name
        assert float(slow.norm()) > 0, name
        assert float((fast - slow).norm()) <= 2e-4 * float(slow.norm()) + 1e-6, name


def test_the_check_before_first_use_passes_and_catches_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = (16, 16, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(cope_check, "BATCH", 1)
    monkeypatch.setattr(cope_check, "LENGTH", 140)
    message = r"wrong .*: the gradient of the bias is off"
    catches(monkeypatch, cope_ops, "backward", -1, case, message)
    for segmented in (False, True):
        cope_ops.self_check.__wrapped__(*case, True, segmented)

    def broken(*arguments: Any) -> tuple[Tensor, ...]:
        raise MemoryError("out of resource: shared memory")

    monkeypatch.setattr(cope_ops, "forward", broken)
    with pytest.raises(RuntimeError, match=r"do not run .* shared memory.*backend='sdpa'"):
        cope_ops.self_check.__wrapped__(*case)
