"""What a positional encoding is: a module with a few hooks, each the identity until overridden.

    embed        on the token embeddings, once
    rotate       on queries and keys, in each layer
    bias         on the attention logits, in each layer
    logit_scale  on the attention logits, one factor per query
    shows        which keys a query sees, in each layer (`narrow`), and `sink_logit` beside them

and some that serve them: `bias_form` says what a bias is made of, for kernels; `prepare` settles
the positions and what follows from them alone, once for all layers that share the
encoding; `key_state` keeps what a bias must know of each token besides its key; `masked_bias` is
the bias where some keys are hidden.

Shapes used below: B batch, T tokens, H query heads, K key heads, D head_dim. Positions are integers
of shape (T,) or (B, T). Nothing is remembered from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from pe._errors import PositionError
from pe.encodings.core.forms import Form


class Prepared(NamedTuple):
    """What `Encoding.prepare` makes of the positions of one forward pass."""

    q_positions: Tensor
    k_positions: Tensor
    tables: Any = None
    """Whatever the encoding's own `rotate` wants to be handed, phase tables for example."""
    counted: bool = False
    """Causal attention of as many queries as keys, all at the positions 0 .. T-1, which kernels
    need; said by the caller."""


class Lengths(NamedTuple):
    """How long the document is that each token belongs to: its largest position plus one."""

    of_queries: Tensor
    """(1 or B, Tq) int64."""
    of_keys: Tensor
    """(1 or B, Tk) int64."""


def refuse_positions(name: str, positions: Tensor, batch: int | None, tokens: int) -> None:
    """Raise ValueError unless positions are (tokens,) or, of a batch, (1 or batch, tokens)."""
    shape = tuple(positions.shape)
    rows = ((),) if batch is None else ((), (1,), (batch,))
    if not shape or shape[-1] != tokens or shape[:-1] not in rows:
        raise ValueError(
            f"{name}: expected ({tokens},) or ({batch}, {tokens}), one position per token, got "
            f"{shape}"
        )


def tightest(parts: Iterable[Any]) -> tuple[int | None, str]:
    """The smallest `max_positions` of encodings or transforms, and that part's name."""
    limits = [
        (p.max_positions, getattr(p, "limited_by", "") or p.name or type(p).__name__)
        for p in parts
        if p.max_positions is not None
    ]
    return min(limits, key=lambda limit: limit[0], default=(None, ""))


class Encoding(nn.Module):
    """Base class: no encoding at all. Override the hooks and traits that differ.

    Traits (of the class, or of an instance whose options decide):
        name: what it is registered as; "" where it is not.
        relative: shifting all positions by the same amount changes no logit.
        length_dependent: the result depends on the length of the document, which is its largest
            position plus one; never remembered.
        content_dependent: the bias looks at queries and keys.
        random: positions are drawn again in each forward pass.
        raw_keys: keys must be cached as they were before `rotate`, because a rotated key does not
            stay valid. Follows from the three traits above unless a class says otherwise.
        state_size: S, the numbers that `key_state` keeps for each token and head.
        per_layer: each layer has its own instance (its own parameters), otherwise all share one.
        rotates: `rotate` does something; two such encodings cannot be combined.
        embeds: `embed` does something; likewise.
        alone_with: name of the encoding that is added where no other is named.
        hides: some of the keys that causality, padding and documents leave visible are hidden.
        keeps: `shows` names keys that stay visible where another part hides them.
        exclusive: set where nothing may be added but what hides or keeps keys.
        corrects_logits: set where the bias is the difference between other logits and those of the
            rotated queries and keys, which nothing may scale then.
        mixes_heads: set where what a head gets depends on other heads' queries and keys.
        max_positions: how many positions there are, 0 to max_positions - 1; None: no limit.
    """

    name: ClassVar[str] = ""
    relative: bool = True
    length_dependent: bool = False
    content_dependent: bool = False
    random: bool = False
    state_size: ClassVar[int] = 0
    per_layer: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    alone_with: ClassVar[str | None] = None
    hides: bool = False
    keeps: ClassVar[bool] = False
    max_positions: int | None = None
    limited_by: str = ""  # the part that `max_positions` comes from, where it is another class
    # Sizes that the encoding was built for, where it looks at them; others are refused.
    head_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None

    @property
    def raw_keys(self) -> bool:
        """Whether keys are cached before they are rotated."""
        return self.length_dependent or self.content_dependent or self.random

    @property
    def cacheable(self) -> bool:
        """Whether what a cache holds of earlier tokens is of use in the next call.

        Not where embeddings carry positions that the next call draws again: the tokens would be
        out of order.
        """
        return not (self.random and self.embeds)

    def refuse_too_far(self, positions: Tensor) -> None:
        """Raise PositionError if a position is not below `max_positions`; on the CPU only.

        Elsewhere this would wait for the device, and the model looks once for all encodings.
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
        """Raise ValueError where queries, keys and positions do not fit.

        Nothing is broadcast. Positions that are None are not looked at: those of keys are more
        than the keys where a cache holds the others.
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
        """Called before the hooks below, which get its positions; `rotate` gets its tables.

        Once per forward pass for each instance; once per layer if the encoding is `random`.

        Args:
            dtype: of the queries; tables are float64 for float64, otherwise float32.
            lengths: of the documents that tokens belong to, where a sequence holds several or hides
                some of its tokens; only `length_dependent` encodings get it. None: each row is one
                document.
        """
        return Prepared(q_positions, k_positions)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token embeddings (B, T, hidden) and positions -> (B, T, hidden)."""
        return x

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        """(B, H, Tq, D) and (B, K, Tk, D) -> the pair whose dot products are the logits.

        The result may be wider than D; the logits are still divided by sqrt(D). ``tables`` are
        those of `prepare` for these positions; without them they are computed here.
        """
        return q, k

    def key_state(self, x: Tensor) -> Tensor | None:
        """Layer input (B, T, hidden) -> (B, H, T, S) float32 to keep beside the keys, or None."""
        return None

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor | None:
        """float32 term to add to the scaled logits, broadcastable to (B, H, Tq, Tk), or None.

        For causal attention: keys ahead of a query get whatever there is, so that in an encoder a
        penalty by distance would be one-sided.

        The queries are the last Tq of the keys, and what lies behind a query is masked by the
        caller. ``q`` and ``k`` are as they were before `rotate`; ``state`` is what `key_state`
        gave for all keys, (B, H, Tk, S).
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
        """`bias` where ``mask``, (1 or B, 1 or H, Tq, Tk), True at the keys that a query sees, is
        not simply causal.

        Override it where the bias of a key depends on the keys between it and the query, of which
        hidden ones must not count.
        """
        return self.bias(q, k, q_positions, k_positions, state)

    @property
    def biased(self) -> bool:
        """Whether `bias` adds something."""
        return type(self).bias is not Encoding.bias

    @property
    def has_form(self) -> bool:
        """Whether `bias_form` gives something; true of what has no bias."""
        return not self.biased or type(self).bias_form is not Encoding.bias_form

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        """What the bias is made of, for tokens at positions 0 .. ``length`` - 1.

        Must say the same as `bias`. Override it where the bias is less than a matrix, and kernels
        will never make one (`pe.encodings.core.forms`).
        """
        if self.biased:
            raise NotImplementedError(f"{type(self).__name__} has no bias_form")
        return Form()

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        """Factor on top of 1/sqrt(D), broadcastable to (B, H, Tq); None is 1."""
        return None

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        """Which keys a query sees, boolean: of the tokens it may see at all, counted from 0, those
        numbered ``key``, broadcastable to (B, H, Tq, Tk), where its own is ``query``.

        Called where `hides` or `keeps` is set.
        """
        raise NotImplementedError(f"{type(self).__name__} hides or keeps keys and has no shows")

    def narrow(self, mask: Tensor | None, length: int, known: int, device: torch.device) -> Tensor:
        """The mask (1 or B, 1 or H, ``length``, ``known``) of the keys that are left visible.

        Args:
            mask: the same without this encoding, True where a query sees a key; None: causal, the
                queries being the last of the keys.
        """
        if mask is None:
            key = torch.arange(known, device=device)
            query = key[known - length :, None]
            return (self.shows(key, query) & (key <= query))[None, None]
        count = mask.cumsum(-1, dtype=torch.int32)
        return self.shows(count - 1, count[..., -1:] - 1) & mask

    def sink_logit(self) -> Tensor | None:
        """float32 (H,): a logit that every query has beside those of its keys, of a key without
        a value; None: there is none."""
        return None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the learned parameters again (none here)."""

    def exact_buffers(self) -> dict[str, Tensor]:
        """Constants that must survive ``.to(bfloat16)`` and meta-device loading, on the CPU.

        They are registered by `register_exact_buffers` and computed again whenever the module is
        moved or cast, so they are never rounded and never left uninitialised.
        """
        return {}

    def register_exact_buffers(self) -> None:
        """Compute the exact buffers, each where it is; call it once at the end of ``__init__``."""
        default = torch.empty(0).device  # honours `with torch.device("meta")`
        for name, value in self.exact_buffers().items():
            here = self._buffers.get(name)
            value = value.to(default if here is None else here.device)
            self.register_buffer(name, value, persistent=False)

    reset_buffers = register_exact_buffers

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.register_exact_buffers()
        return self
