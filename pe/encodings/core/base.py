"""Base class of positional encodings: a module whose hooks do nothing until they are overridden.

    embed        changes the token embeddings, once per model
    rotate       changes queries and keys, in each layer
    bias         is added to the attention logits, in each layer
    logit_scale  multiplies the attention logits, one factor per query
    shows        decides which keys a query sees, in each layer (`narrow`)
    sink_logit   is one more logit in the softmax, in each layer

Other hooks support these. `prepare` computes what depends on positions alone, once for all layers
that share the encoding. `key_state` computes what a bias needs of each token besides its key.
`masked_bias` is the bias if some keys are hidden. `bias_form` describes the bias to kernels.

Shapes: B batch, T tokens (Tq queries, Tk keys), H query heads, K key heads, D head_dim. Positions
are integers of shape (T,) or (B, T). An encoding keeps nothing from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from pe._errors import PositionError
from pe.encodings.core.forms import NONE, Form


class Prepared(NamedTuple):
    """The positions of one forward pass and what `Encoding.prepare` computes from them."""

    q_positions: Tensor
    k_positions: Tensor
    tables: Any = None
    """The argument ``tables`` of the same encoding's `rotate`, such as cosines and sines."""
    counted: bool = False
    """Whether attention is causal, with as many queries as keys, at positions 0 .. T-1. The caller
    sets it, and kernels need it."""


class Lengths(NamedTuple):
    """The length of each token's document, which is the largest position in it plus one."""

    of_queries: Tensor
    """(1 or B, Tq) int64."""
    of_keys: Tensor
    """(1 or B, Tk) int64."""


def refuse_positions(name: str, positions: Tensor, batch: int | None, tokens: int) -> None:
    """Raise ValueError unless positions are (tokens,) or, in a batch, (1 or batch, tokens)."""
    shape = tuple(positions.shape)
    rows = ((),) if batch is None else ((), (1,), (batch,))
    if not shape or shape[-1] != tokens or shape[:-1] not in rows:
        raise ValueError(
            f"{name}: expected ({tokens},) or ({batch}, {tokens}), one position per token, got "
            f"{shape}"
        )


def tightest(parts: Iterable[Any]) -> tuple[int | None, str]:
    """Return the smallest `max_positions` of encodings or transforms, and the name of that part."""
    limits = [
        (p.max_positions, getattr(p, "limited_by", "") or p.name or type(p).__name__)
        for p in parts
        if p.max_positions is not None
    ]
    return min(limits, key=lambda limit: limit[0], default=(None, ""))


class Encoding(nn.Module):
    """Base class, which encodes nothing. Subclasses override the hooks and traits that differ.

    Traits (of the class, or of an instance whose options decide):
        name: the registered name, or "".
        relative: shifting all positions by the same amount changes no logit.
        length_dependent: the result depends on the length of the document, which is its largest
            position plus one. It is computed again in each call.
        content_dependent: the bias depends on queries and keys.
        form_kind: the kind of `bias_form` (`pe.encodings.core.forms`), if the bias depends on
            content and has a kernel.
        random: positions are drawn again in each forward pass.
        raw_keys: keys must be cached before `rotate`, because a rotated key does not stay valid.
            True if one of the three traits above is, unless a class overrides it.
        state_size: S, how many numbers `key_state` keeps per token and head.
        per_layer: each layer has an instance with its parameters; otherwise all layers share one.
        rotates: `rotate` does something. Two such encodings cannot be combined.
        embeds: `embed` does something. Two such encodings cannot be combined.
        alone_with: name of the encoding that is added if the spec names no other.
        hides: some keys are hidden that causality, padding and documents leave visible.
        keeps: `shows` names keys that stay visible even if another part hides them.
        exclusive: nothing can be added except parts that hide or keep keys.
        corrects_logits: the bias is the difference between other logits and those of the rotated
            queries and keys, so nothing may scale the logits.
        mixes_heads: the output of a head depends on the queries and keys of other heads.
        max_positions: the number of positions, which are 0 to max_positions - 1; None is no limit.
    """

    name: ClassVar[str] = ""
    relative: bool = True
    length_dependent: bool = False
    content_dependent: bool = False
    form_kind: int = NONE
    random: bool = False
    state_size: ClassVar[int] = 0
    per_layer: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    alone_with: ClassVar[str | None] = None
    exclusive: ClassVar[bool] = False
    corrects_logits: ClassVar[bool] = False
    mixes_heads: bool = False
    hides: bool = False
    keeps: ClassVar[bool] = False
    max_positions: int | None = None
    limited_by: str = ""  # the part with the smallest `max_positions`, if it is another class
    # Sizes that the encoding was built for, if it depends on them; other sizes are an error.
    head_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None

    @property
    def raw_keys(self) -> bool:
        """Whether keys must be cached before they are rotated."""
        return self.length_dependent or self.content_dependent or self.random

    @property
    def cacheable(self) -> bool:
        """Whether a cache of earlier tokens is valid in the next call.

        It is not if the embeddings hold positions that the next call draws again, because the
        tokens would be out of order.
        """
        return not (self.random and self.embeds)

    def refuse_too_far(self, positions: Tensor) -> None:
        """Raise PositionError if a position is not below `max_positions`.

        On a GPU nothing is checked, because the check would wait for the device. There the model
        checks once for all encodings.
        """
        limit, name = tightest([self])
        if limit is None or positions.device.type != "cpu" or torch.compiler.is_compiling():
            return
        if positions.numel() and int(positions.max()) >= limit:
            raise PositionError(int(positions.max()), limit, name)

    def refuse_misfit(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
    ) -> None:
        """Raise ValueError if the shapes of queries, keys and positions do not fit.

        Nothing is broadcast. Positions that are None are not checked, because with a cache there
        can be more positions of keys than keys.
        """
        for name, x in (("q", q), ("k", k)):
            if x.dim() != 4:
                raise ValueError(
                    f"{name}: expected (batch, heads, tokens, head_dim), got {tuple(x.shape)}"
                )
        (batch, heads), groups = q.shape[:2], k.shape[1]
        if k.shape[0] != batch or heads % groups or q.shape[-1] != k.shape[-1]:
            raise ValueError(
                f"q {tuple(q.shape)} and k {tuple(k.shape)} do not fit: expected one batch size "
                "and head_dim, and heads of q that are a multiple of those of k"
            )
        for name, want, got in (
            ("head_dim", self.head_dim, q.shape[-1]),
            ("heads of q", self.num_heads, heads),
            ("heads of k", self.num_kv_heads, groups),
        ):
            if want not in (None, got):
                raise ValueError(
                    f"{type(self).__name__} was built for {want} as {name}, got {got}; build it "
                    "with the sizes of the layer"
                )
        if q_positions is not None:
            refuse_positions("q_positions", q_positions, batch, q.shape[-2])
        if k_positions is not None:
            refuse_positions("k_positions", k_positions, batch, k.shape[-2])

    def prepare(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        dtype: torch.dtype = torch.float32,
        lengths: Lengths | None = None,
    ) -> Prepared:
        """Compute the positions that the hooks below get, and the tables that `rotate` gets.

        It is called once per forward pass for each instance, or once per layer if the encoding is
        `random`.

        Args:
            dtype: of the queries; tables are float64 if it is float64, otherwise float32.
            lengths: of the documents, if a row holds several or hides some of its tokens. Only
                `length_dependent` encodings get it. None means that each row is one document.
        """
        return Prepared(q_positions, k_positions)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the token embeddings (B, T, hidden) with the encoding, of the same shape."""
        return x

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries and keys whose dot products are the logits.

        ``q`` is (B, H, Tq, D) and ``k`` is (B, K, Tk, D).

        The results may be wider than D; the logits are still divided by sqrt(D). ``tables`` are
        those that `prepare` returned for these positions; None computes them here.
        """
        return q, k

    def key_state(self, x: Tensor) -> Tensor | None:
        """Return what a bias needs of each token besides its key, (B, H, T, S) float32, or None.

        It is computed from the layer's input ``x``, (B, T, hidden), and cached beside the keys.
        """
        return None

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor | None:
        """Return the term to add to the scaled logits, or None.

        It is float32 and broadcastable to (B, H, Tq, Tk). It is meant for causal attention: the
        queries belong to the last Tq keys, and the caller masks the keys ahead of each query, whose
        values have no meaning. ``q`` and ``k`` are not rotated. For a `content_dependent` encoding
        ``q`` contains the model's own factors of the logits, so that the logits are q k / sqrt(D).
        ``state`` is the result of `key_state` for all keys, (B, H, Tk, S).
        """
        return None

    def masked_bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None,
        mask: Tensor,
    ) -> Tensor | None:
        """Return the `bias` under a mask that is more than causal.

        ``mask``, (1 or B, 1 or H, Tq, Tk), is True at the keys that a query sees. Override this if
        the bias of a key depends on the keys between it and the query, because hidden keys must
        not count.
        """
        return self.bias(q, k, q_positions, k_positions, state)

    @property
    def biased(self) -> bool:
        """Whether the encoding has a bias."""
        return type(self).bias is not Encoding.bias

    @property
    def has_form(self) -> bool:
        """Whether `bias_form` is implemented; also True without a bias."""
        return not self.biased or type(self).bias_form is not Encoding.bias_form

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        """Return the bias spec for kernels, for tokens at positions 0 .. ``length`` - 1.

        It must give the same values as `bias`. Override it if the bias follows from less than a
        matrix, so that kernels never store the matrix (`pe.encodings.core.forms`).
        """
        if self.biased:
            raise NotImplementedError(f"{type(self).__name__} has no bias_form")
        return Form()

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        """Return a factor of the logits besides 1/sqrt(D), broadcastable to (B, H, Tq); None: 1."""
        return None

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        """Return whether a query sees a key, boolean, broadcastable to (B, H, Tq, Tk).

        ``key`` and ``query`` are the numbers of the key and of the query's token, counted from 0
        among the tokens that the query may see at all. Called if `hides` or `keeps` is set.
        """
        raise NotImplementedError(f"{type(self).__name__} hides or keeps keys and has no shows")

    def narrow(self, mask: Tensor | None, length: int, known: int, device: torch.device) -> Tensor:
        """Return the mask (1 or B, 1 or H, ``length``, ``known``), True at visible keys.

        Args:
            mask: the mask without this encoding, of the same shape. None is a causal mask whose
                queries belong to the last keys.
        """
        if mask is None:
            key = torch.arange(known, device=device)
            query = key[known - length :, None]
            return (self.shows(key, query) & (key <= query))[None, None]
        count = mask.cumsum(-1, dtype=torch.int32)
        return self.shows(count - 1, count[..., -1:] - 1) & mask

    def sink_logit(self) -> Tensor | None:
        """Return one more logit per query, as of a key without a value: float32 (H,), or None."""
        return None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the learned parameters again. The base class has none."""

    def exact_buffers(self) -> dict[str, Tensor]:
        """Return constants, on the CPU, that must survive ``.to(bfloat16)`` and the meta device.

        `register_exact_buffers` registers them. They are computed again whenever the module is
        moved or cast, so they are never rounded and never uninitialised.
        """
        return {}

    def register_exact_buffers(self) -> None:
        """Compute the exact buffers on their devices. Call it at the end of ``__init__``."""
        default = torch.empty(0).device  # respects `with torch.device("meta")`
        for name, value in self.exact_buffers().items():
            here = self._buffers.get(name)
            value = value.to(default if here is None else here.device)
            self.register_buffer(name, value, persistent=False)

    reset_buffers = register_exact_buffers

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.register_exact_buffers()
        return self
