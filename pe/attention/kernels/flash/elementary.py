"""Addresses, and single instructions that Triton lacks or would place elsewhere."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tile(p, strides, i_b, i_h, o_t, o_c):
    """Addresses in one head: of tokens o_t, down, and channels o_c, across."""
    return p + i_b * strides[0] + i_h * strides[1] + o_t[:, None] * strides[2] + o_c[None, :]


@triton.jit
def read(address):
    """One float32 from each address.

    As assembly, since Triton takes a load in a loop for one to fetch ahead into shared memory, and
    a table is better read where it is: in the first cache, one line for many threads.
    """
    if INTERPRETED:
        return tl.load(address.to(tl.pointer_type(tl.float32)))
    return tl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [address], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def read_two(address):
    """Two float32 that lie side by side from each address."""
    if INTERPRETED:
        where = address.to(tl.pointer_type(tl.float32))
        return tl.load(where), tl.load(where + 1)
    return tl.inline_asm_elementwise(
        "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [address],
        dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def log2(x):
    """In one instruction, -inf at 0."""
    if INTERPRETED:
        return tl.math.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def inverse(x):
    """1 / x for x from 1 to infinity, where a division would handle other numbers, too."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
