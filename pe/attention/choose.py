"""Choose how a layer's attention is computed, and give the reason if kernels cannot be used.

    flash   torch's fused attention: no bias, no window, no sink
    kernel  our Triton kernels: a bias that is computed block by block
            (`pe.encodings.core.forms`), and windows, chunks and first keys, whose hidden blocks
            are skipped (`pe.attention.spans`). Without a gradient, also attention with different
            logits for near and far keys (`pe.attention.near_far`)
    matrix  torch's attention with a matrix, which holds the bias in float32 or a window's mask
    rows    the same with a block of the matrix at a time (`pe.attention.rows`), if it would be
            large; in a window that hides most keys, each block has only the keys that it sees
    dense   the definition (`pe.attention.dense`), only on request

The first of these is chosen that is exact for the case at hand and whose matrix, if it has one, has
at most `LARGEST_MATRIX` entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pe._errors import unknown
from pe.attention.available import INTERPRETED, unavailable_reason
from pe.attention.dense import dense_attention
from pe.attention.near_far import Far, NearFar, attend_in_two
from pe.attention.sdpa import sdpa_attention
from pe.attention.spans import Bounded, Spans, spans
from pe.encodings.core.base import Encoding
from pe.encodings.core.forms import COUNTS, FIRE, HEADS, REFLECTED, ROWS, STICKS, Form
from pe.encodings.core.key_range import key_range

if TYPE_CHECKING:
    from pe.attention.rows import BlockBias

BACKENDS = {"dense": dense_attention, "sdpa": sdpa_attention}
"""Backends that take any bias and any mask: ``(q, k, v, scale, bias, mask, sink) -> output``."""
LARGEST_MATRIX = 2**29
"""The most entries, over batch and heads, of a bias that is a whole matrix: 2 GiB in float32."""
FEW = 4
"""A window hides most keys if the length is more than this many times the keys it shows."""
WIDTHS = (16, 32, 64, 128)
"""Widths of heads for which there are kernels."""


class Limits(NamedTuple):
    """Which cases a kernel can compute."""

    widths: tuple[int, ...] = WIDTHS
    """Widths of heads that it can have."""
    windows: bool = True
    """Whether keys may be hidden by a window or a chunk."""
    sinks: bool = True
    """Whether first keys may stay visible in a window, and a learned sink be added."""
    float32: bool = False
    """Whether queries may be in float32."""


LIMITS = {
    # `pe.attention.kernels.cope.op.WIDEST` says why 128 is not among the widths.
    COUNTS: Limits((16, 32, 64), sinks=False),
    HEADS: Limits(windows=False, sinks=False),
    STICKS: Limits(float32=True),
    REFLECTED: Limits(windows=False, sinks=False),
}
"""By the kind of a bias that depends on queries and keys; the others have the defaults."""


def checked(backend: str | None) -> str | None:
    """Return the name of a backend, or None, which stands for the best one.

    Raises:
        ValueError: there is no such backend.
    """
    names = (*BACKENDS, "kernel")
    if backend is not None and backend not in names:
        raise unknown("attention backend", backend, names)
    return backend


def obstacle(
    enc: Encoding, device: torch.device | None, dtype: torch.dtype, counted: bool, head_dim: int
) -> str | None:
    """Return why the kernels cannot compute attention with this encoding; None if they can.

    Args:
        device: None for a GPU on which the kernels run.
        dtype: of the queries. head_dim: their width.
        counted: whether attention is causal, has as many queries as keys, and all positions are
            counted from 0.
    """
    if not enc.has_form:
        return "its bias is known as a matrix only"
    shown = key_range(enc)
    if shown is None:
        return "which keys it hides is known as a mask only"
    limits = LIMITS.get(enc.form_kind, Limits())
    if enc.hides and not limits.windows:
        return "its kernel reads all keys, and has no window"
    if (shown.sinks or enc.sink_logit() is not None) and not limits.sinks:
        return "its kernel has neither a sink nor first keys that stay visible"
    if device is not None and (reason := unavailable_reason(device)) is not None:
        return reason
    narrow = dtype in (torch.float16, torch.bfloat16)
    if not (narrow or INTERPRETED or (limits.float32 and dtype == torch.float32)):
        known = "bfloat16, float16 or float32" if limits.float32 else "bfloat16 or float16"
        return f"the kernels compute in {known}, and queries are {dtype}"
    if not counted:
        return "positions are not simply counted, tokens are masked, or keys come from a cache"
    if head_dim not in limits.widths:
        return f"head_dim is {head_dim} and must be one of {limits.widths}"
    return None


def _needs_kernel(enc: Encoding) -> bool:
    """Return whether torch's attention would need a matrix."""
    return enc.biased or enc.hides or enc.sink_logit() is not None


def path_for(
    enc: Encoding,
    device: torch.device | None,
    dtype: torch.dtype,
    length: int,
    sequences: int = 1,
    head_dim: int = 64,
    compiled: bool = False,
) -> str:
    """Return the way in which a step of training or prefill computes attention.

    Args:
        device: None for a GPU on which the kernels run.
        length: number of tokens per sequence. sequences: batch size times heads.
        compiled: whether torch.compile is used, which excludes computing a window by rows.
    """
    if not _needs_kernel(enc):
        return "flash"
    gpu = device is None or device.type == "cuda"
    if gpu and length > 1 and not obstacle(enc, device, dtype, True, head_dim):
        return "kernel"
    few = not compiled and shows_few(enc, length)
    if few or (enc.biased and sequences * length**2 > LARGEST_MATRIX):
        return "rows"
    return "matrix"


def kernel_form(
    enc: Encoding,
    q: Tensor,
    k: Tensor,
    state: Tensor | None,
    mask: Tensor | Spans | None,
    counted: bool,
    backend: str | None,
) -> Form | None:
    """Return the bias spec for the kernels, or None if another way is taken.

    Arguments are those of `bias_of`.

    Raises:
        ValueError: ``backend="kernel"``, and the kernels cannot serve this case; or the encoding's
            `form_kind` is not the kind of its bias spec.
    """
    if backend not in (None, "kernel") or isinstance(mask, Bounded):
        return None
    if backend is None and not (_needs_kernel(enc) and q.is_cuda):
        return None  # interpreted kernels are for tests, which ask for them by name
    # Without a bias the kernels need no positions, because rotations are done before.
    counted = (counted or not enc.biased) and not isinstance(mask, Tensor)
    counted = counted and q.shape[-2] == k.shape[-2]
    if backend is None and q.shape[-2] == 1:
        return None  # for a single query the matrix is a row, so nothing is saved
    reason = obstacle(enc, q.device, q.dtype, counted, q.shape[-1])
    if reason is None:
        if enc.form_kind == ROWS and state is not None and q.dtype == torch.bfloat16:
            state = state.bfloat16()  # the table of all queries takes most of the time
        with torch.autocast(q.device.type, enabled=False):
            form = enc.bias_form(q.shape[-2], q.device, state)
        if form.kind in (*LIMITS, ROWS) and form.kind != enc.form_kind:
            raise ValueError(
                f"{type(enc).__name__}.bias_form returns the kind {form.kind}, and form_kind is "
                f"{enc.form_kind}: set form_kind = {form.kind} in the class, because it decides "
                "what the kernel is used for, and in which dtype"
            )
        if form.kind != FIRE or enc.sink_logit() is None:
            return form
        reason = (
            "its gradient leaves out what all biases of a row have in common, and a sink needs that"
        )
    if backend == "kernel":
        raise ValueError(f"backend 'kernel' cannot serve {type(enc).__name__} here: {reason}")
    return None


def spans_for(
    enc: Encoding,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    length: int,
    backend: str | None,
    padding: Tensor | None = None,
    documents: Tensor | None = None,
) -> Spans | None:
    """Return what replaces a mask for as many queries as keys.

    Args:
        padding: (B, T), 0 at padding. documents: (B, T), the document of each token.

    Returns:
        `Spans` if the kernels serve this case, `Bounded` if it is computed by rows in a window, and
        None if a mask is needed.
    """
    shown = key_range(enc)
    if not enc.hides or shown is None or backend not in (None, "kernel"):
        return None
    served = backend == "kernel" or (device.type == "cuda" and length > 1)
    if served and obstacle(enc, device, dtype, True, head_dim) is None:
        return spans(shown, length, device, padding, documents)
    if not _in_blocks(enc, length, backend):
        return None
    return Bounded(*spans(shown, length, device, padding, documents))


def shown_keys(
    enc: Encoding, q: Tensor, k: Tensor, mask: Tensor | None, backend: str | None
) -> Tensor | Spans | None:
    """Return ``mask`` without the keys that the encoding hides, or the spans that replace it.

    Args:
        q: (B, H, Tq, D). k: (B, K, Tk, D).
        mask: (1 or B, 1 or H, Tq, Tk), True where a query may attend; None: causal.
    """
    if not enc.hides:
        return mask
    length, known = q.shape[2], k.shape[2]
    if mask is None and length == known:
        found = spans_for(enc, q.device, q.dtype, q.shape[-1], length, backend)
        if found is not None:
            return found
    return enc.narrow(mask, length, known, q.device)


def bounded(enc: Encoding, result: Spans, backend: str | None) -> Bounded | None:
    """Return the spans of a case that kernels turn out not to serve; None if a mask is needed."""
    length = result.rows.shape[-1]
    return Bounded(*result) if _in_blocks(enc, length, backend) else None


def _in_blocks(enc: Encoding, length: int, backend: str | None) -> bool:
    """Return whether a case that kernels do not serve is computed by rows in a window."""
    return backend is None and not torch.compiler.is_compiling() and shows_few(enc, length)


def shows_few(enc: Encoding, length: int) -> bool:
    """Return whether a window or a chunk hides most keys of a sequence of this length."""
    shown = key_range(enc)
    if not enc.hides or shown is None:
        return False
    limits = [limit for limit in (shown.window, shown.chunk) if limit is not None]
    return bool(limits) and length > FEW * (min(limits) + shown.sinks)


def _in_two(q: Tensor, k: Tensor, counted: bool, backend: str | None) -> bool:
    """Return whether kernels can attend to near and far keys separately, which has no gradient."""
    if backend not in (None, "kernel") or (backend is None and not q.is_cuda):
        return False
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    fits = counted and q.shape[2] == k.shape[2] > 1 and q.shape[-1] in WIDTHS
    fits = fits and (q.dtype in (torch.float16, torch.bfloat16) or INTERPRETED)
    return fits and not learns and unavailable_reason(q.device) is None


def refuse_broadcast(what: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless ``x`` broadcasts to ``shape`` and leaves ``shape`` as it is."""
    pairs = zip(reversed(x.shape), reversed(shape), strict=False)
    if x.dim() > len(shape) or not all(a == b or a == 1 for a, b in pairs):
        raise ValueError(
            f"{what} of shape {tuple(x.shape)} does not fit attention of {tuple(shape)}: give one "
            "that broadcasts to it, and build the encoding for these sizes"
        )


class Bias(NamedTuple):
    """A bias in one of four forms, of which at most one is given; without any there is no bias."""

    whole: Tensor | None = None
    """The bias as a matrix, broadcastable to (B, H, Tq, Tk)."""
    form: Form | None = None
    """The bias spec for the kernels."""
    by_rows: BlockBias | None = None
    """The bias as a function of a block of queries (`pe.attention.rows`)."""
    far: Far | None = None
    """Instead of a bias, queries and keys for the logits of far keys."""


def bias_of(
    enc: Encoding,
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    state: Tensor | None,
    mask: Tensor | Spans | None,
    counted: bool,
    backend: str | None,
) -> Bias:
    """Return what ``enc`` adds to the logits of these queries and keys.

    Args:
        q: (B, H, Tq, D), not rotated yet. k: (B, K, Tk, D), not rotated yet; only the new keys if
            a cache holds rotated ones.
        q_positions, k_positions: (T,) or (B, T), of the queries and of all keys.
        state: (B, H, Tk, S), what `Encoding.key_state` returned for all keys.
        mask: (1 or B, 1 or H, Tq, Tk), True where a query sees a key; None: causal. Or spans.
        counted: whether positions are 0, 1, 2 ..., as in `Prepared`.
        backend: the name of a backend, or None to choose.

    Raises:
        ValueError: ``backend="kernel"``, and the kernels cannot serve this case, or the bias does
            not fit the queries and keys.
    """
    # hasattr in place of isinstance, because torch.compile does not support protocols.
    near_far: NearFar | None = enc if hasattr(enc, "far") else None  # type: ignore[assignment]
    if near_far is not None and mask is None and _in_two(q, k, counted, backend):
        far = near_far.far(q, k, q_positions, k_positions)
        return Bias(far=Far(*far, near_far.neighbor_window))
    form = kernel_form(enc, q, k, state, mask, counted, backend)
    if form is not None:
        return Bias(form=form)

    def block_bias(queries: slice, keys: slice | Tensor, seen: Tensor | None) -> Tensor | None:
        inputs = (
            q[:, :, queries], k[:, :, keys], q_positions[..., queries], k_positions[..., keys],
            None if state is None else state[:, :, keys],
        )  # fmt: skip
        return enc.bias(*inputs) if seen is None else enc.masked_bias(*inputs, seen)

    # If a cache holds rotated keys, `k` has only the new ones. There are few queries then.
    entries = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    is_large = entries > LARGEST_MATRIX and k.shape[2] == k_positions.shape[-1]
    if isinstance(mask, Bounded) or (enc.biased and backend is None and is_large):
        return Bias(by_rows=block_bias)
    if mask is None:
        whole = enc.bias(q, k, q_positions, k_positions, state)
    else:
        seen = mask.mask() if isinstance(mask, Spans) else mask
        whole = enc.masked_bias(q, k, q_positions, k_positions, state, seen)
    if whole is not None:
        refuse_broadcast("bias", whole, (*q.shape[:3], k_positions.shape[-1]))
    return Bias(whole)


def compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Bias,
    mask: Tensor | Spans | None,
    backend: str | None,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute attention in the way for which ``bias`` was made.

    Args:
        q: (B, H, Tq, E) and k: (B, K, Tk, E), rotated. v: (B, K, Tk, D). scale: of the logits.
        mask, backend: as in `bias_of`. sink: (H,), a further logit per head, or None.

    Returns:
        (B, H, Tq, D).
    """
    if bias.far is not None:
        with torch.autocast(q.device.type, enabled=False):
            return attend_in_two(q, k, v, scale, bias.far)
    if bias.form is None:
        if isinstance(mask, Spans) and not isinstance(mask, Bounded):
            mask = mask.mask()
        if bias.by_rows is not None:
            from pe.attention.rows import attend_by_rows  # imports torch's compiler, slowly

            by_rows: Tensor = attend_by_rows(bias.by_rows, q, k, v, scale, mask, sink)
            return by_rows
        assert not isinstance(mask, Spans)  # with bounded spans the bias is computed by rows
        attend = BACKENDS[backend or "sdpa"]
        return attend(q, k, v, scale=scale, bias=bias.whole, mask=mask, sink=sink)
    from pe.attention.kernels import dape as dape_ops
    from pe.attention.kernels.cope import op as cope_ops
    from pe.attention.kernels.flash import op as ops
    from pe.attention.kernels.flash.launch import ALL_KEYS
    from pe.attention.kernels.path import op as path_ops
    from pe.attention.kernels.stickbreaking import op as sticks

    kind, own, parts, reach = bias.form
    out: Tensor
    with torch.autocast(q.device.type, enabled=False):
        if kind == STICKS:
            seen = mask[:3] if isinstance(mask, Spans) else (None, False, False)
            out = sticks.attend(q, k, v, scale, reach, *seen)[0]
        elif kind == COUNTS:
            rows, _, segmented, near = mask if isinstance(mask, Spans) else ALL_KEYS
            out = cope_ops.attend(q, k, v, scale, own, rows, segmented, near)[0]
        elif kind == HEADS:
            out = dape_ops.attend(q, k, v, scale, own, *parts)[0]
        elif kind == REFLECTED:
            out = path_ops.attend(q, k, v, own)[0]
        else:
            shown = mask if isinstance(mask, Spans) else ALL_KEYS
            out = ops.attend(q, k, v, scale, kind, own, list(parts), reach, *shown, sink)[0]
    return out
