"""CoPE's kernels where keys are far: a bias that is one number a row, dk and dv made by keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl
from cope_cases import computed, made
from kernel_cases import agree
from torch import Tensor

from pe.attention.kernels.cope import far as cope_far
from pe.attention.kernels.cope import launch as cope_launch
from pe.attention.kernels.cope import op as cope_ops
from pe.attention.kernels.cope import self_check as cope_check
from pe.encodings.core.forms import by_count

BLOCK = cope_launch.FORWARD.queries


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """FAR (B, H, blocks of queries) of each forward pass of the kernels."""
    found: list[Tensor] = []
    forward = cope_ops.forward

    def watched(*arguments: Any) -> tuple[Tensor, ...]:
        result = forward(*arguments)
        found.append(result[3])
        return result

    monkeypatch.setattr(cope_ops, "forward", watched)
    return found


def shut(*places: Any) -> Any:
    """Gates of these queries are all but 0: they count to nothing, and no key is far to them."""

    def change(q: Tensor, k: Tensor) -> None:
        k[..., 0], q[..., 0] = 20.0, 0.0
        for place in places:
            q[(*place, 0)] = -6.0

    return change


def late(start: int, stop: int) -> tuple[Any, ...]:
    """Of all heads the queries of these blocks."""
    return (slice(None), slice(None), slice(start * BLOCK, stop * BLOCK))


def test_keys_are_far_to_some_blocks_of_queries_and_not_to_later_ones(seen: list[Tensor]) -> None:
    """The fourth block of queries counts to nothing: FAR falls and rises again."""
    enc = made(16, 7)
    shared: dict[str, Any] = {"length": 257, "heads": 2, "kv": 1, "width": 16}
    case: dict[str, Any] = {**shared, "change": shut(late(3, 4))}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))
    assert seen[0].unique(dim=1).tolist() == [[[0, 0, 64, 0, 192]]]


def test_keys_are_far_to_one_head_of_a_group_and_to_none_of_another(seen: list[Tensor]) -> None:
    enc = made(16, 7)
    others = (
        slice(None),
        slice(1, None),
        slice(None),
    )  # of heads 0, 1 | 2, 3 only the first counts
    shared: dict[str, Any] = {"length": 193, "heads": 4, "kv": 2, "width": 16}
    case: dict[str, Any] = {**shared, "change": shut(others)}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))
    assert seen[0][0].tolist() == [[0, 0, 64, 128], *3 * [[0] * 4]]


@pytest.mark.parametrize(("length", "npos", "most"), [(129, 2, 64), (257, 70, 64)])
def test_lengths_that_end_within_a_block_and_counts_of_several_calls(
    length: int, npos: int, most: int, seen: list[Tensor]
) -> None:
    """Keys of the last block that are not there are no part of a far block."""
    enc = made(32, npos)
    case: dict[str, Any] = {"length": length, "heads": 1, "kv": 1, "width": 32}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))
    assert int(seen[0].max()) == most


def test_pieces_read_what_belongs_to_their_own_heads(
    monkeypatch: pytest.MonkeyPatch, seen: list[Tensor]
) -> None:
    """One key head at a time, with other far keys in each; a text's key heads lie apart."""
    enc = made(16, 12)
    places = [
        (batch, head, slice(128, 128 + 64 * ((batch + head) % 3)))
        for batch in range(2)
        for head in range(2)
    ]
    case: dict[str, Any] = {
        "length": 193,
        "heads": 2,
        "kv": 2,
        "width": 16,
        "batch": 2,
        "change": shut(*places),
    }
    exact = computed(enc, "dense", **case)
    monkeypatch.setattr(cope_launch, "HELD", 193 * 32 * 2)
    agree(computed(enc, "kernel", **case), exact)
    assert seen[0].flatten(0, 1).unique(dim=0).shape[0] == 3


def test_the_first_query_block_is_found_in_several_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in sequences beyond 16,384 tokens."""
    monkeypatch.setattr(cope_far, "READ_AT_ONCE", tl.constexpr(2))
    enc = made(16, 7)
    shared: dict[str, Any] = {"length": 321, "heads": 1, "kv": 1, "width": 16}
    case: dict[str, Any] = {**shared, "change": shut(late(2, 4))}
    agree(computed(enc, "kernel", **case), computed(enc, "dense", **case))


def test_values_of_another_width_than_queries() -> None:
    """Each of dk and dv has its own width throughout."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 140, 32), torch.randn(1, 1, 140, 32)
    v, direction = torch.randn(1, 1, 140, 16), torch.randn(1, 2, 140, 16)
    table = torch.randn(9, 32) * 32**-0.5
    case = cope_check.Case(q, k, v, direction, by_count(table))
    out, lse, n, far = cope_launch.forward(q, k, v, table, 32**-0.5)
    found = cope_launch.backward(direction, q, k, v, out, lse, n, far, table, 32**-0.5)
    for number, (got, want) in enumerate(
        zip((out, *found), cope_check.expected(case, 32**-0.5), strict=True)
    ):
        assert float((got - want).norm() / want.norm()) < 2e-5, number
