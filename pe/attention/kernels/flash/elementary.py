"""Addresses of tiles, and single PTX instructions that Triton does not offer or schedules badly."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tile(p, strides, i_b, i_h, o_t, o_c):
    """Return the addresses of tokens o_t and channels o_c of one head, (tokens, channels)."""
    return p + i_b * strides[0] + i_h * strides[1] + o_t[:, None] * strides[2] + o_c[None, :]


@triton.jit
def read(address):
    """Load a float32 from each address.

    It is written in assembly because Triton would prefetch a load in a loop into shared memory. A
    table is better read from the L1 cache, where one line serves many threads.
    """
    if INTERPRETED:
        return tl.load(address.to(tl.pointer_type(tl.float32)))
    return tl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [address], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def read_bfloat16(address):
    """Load a bfloat16 from each address, as float32; see `read`."""
    if INTERPRETED:
        return tl.load(address.to(tl.pointer_type(tl.bfloat16))).to(tl.float32)
    return tl.inline_asm_elementwise(
        "{ .reg .b32 x; ld.global.nc.u16 x, [$1]; shl.b32 x, x, 16; mov.b32 $0, x; }",
        "=f,l", [address], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def read_two(address):
    """Load two adjacent float32 from each address."""
    if INTERPRETED:
        where = address.to(tl.pointer_type(tl.float32))
        return tl.load(where), tl.load(where + 1)
    return tl.inline_asm_elementwise(
        "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [address],
        dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def log2(x):
    """Return log2(x), -inf at 0, in one approximate instruction."""
    if INTERPRETED:
        return tl.math.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def inverse(x):
    """Return 1 / x for x >= 1 in one approximate instruction; a division would be slower."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
