"""Several encodings at once: hooks chain, biases add, scales multiply."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding, Lengths, Prepared, tightest
from pe.encodings.core.forms import NONE, Form

ANY = ("length_dependent", "content_dependent", "random", "per_layer", "rotates", "embeds", "hides")
"""Traits that a sum has if any of its parts has them."""


def combined(
    operation: Callable[[Tensor, Tensor], Tensor], terms: Iterable[Tensor | None]
) -> Tensor | None:
    """The terms that are there, added or multiplied; None if there is none."""
    present = [term for term in terms if term is not None]
    return functools.reduce(operation, present) if present else None


class Composite(Encoding):
    """``rope+alibi``: each hook of each part, in order. At most one part rotates.

    Args:
        parts: the encodings, in order.
        borrowed: parts that belong to another layer's composite; they are used here but are no
            submodules of this one, so that a shared parameter is saved and trained once.
    """

    def __init__(self, parts: Sequence[Encoding], borrowed: Sequence[Encoding] = ()) -> None:
        super().__init__()
        self.parts = nn.ModuleList(p for p in parts if p not in borrowed)
        self._all = tuple(parts)  # a tuple, which nn.Module does not look into
        # Traits of a whole follow from its parts, so they are set on the instance.
        self.relative = all(p.relative for p in parts)
        for trait in ANY:
            setattr(self, trait, any(getattr(p, trait) for p in parts))
        self.state_size = sum(p.state_size for p in parts)  # type: ignore[misc]
        self.mixes_heads = any(getattr(p, "mixes_heads", False) for p in parts)
        self.max_positions, self.limited_by = tightest(parts)
        self._refuse_moves_beyond()

    def _refuse_moves_beyond(self) -> None:
        """Where one part moves tokens, the others must have something for them there."""
        limit, name = self.max_positions, self.limited_by
        for end, mover in (tightest([p]) for p in self._all if p.random):
            if end is not None and limit is not None and limit < end:
                raise ValueError(
                    f"{mover} moves tokens to positions up to {end - 1}, and the longest "
                    f"position of {name} is {limit - 1}: give that more (learned: table_size) "
                    "or move them less (randomized: max_position)"
                )

    @property
    def raw_keys(self) -> bool:
        return any(p.raw_keys for p in self._all)

    def prepare(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        dtype: torch.dtype = torch.float32,
        lengths: Lengths | None = None,
    ) -> Prepared:
        for part in self._all:
            if part.random:  # it moves the tokens for all others; one draw serves all documents
                moved = part.prepare(q_positions, k_positions, dtype)
                q_positions, k_positions, lengths = moved.q_positions, moved.k_positions, None
        tables = [None if part.random else
                  part.prepare(q_positions, k_positions, dtype,
                               **({"lengths": lengths} if part.length_dependent else {})).tables
                  for part in self._all]  # fmt: skip
        return Prepared(q_positions, k_positions, tables)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        for part in self._all:
            x = part.embed(x, positions)
        return x

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        tables = tables or [None] * len(self._all)
        for part, own in zip(self._all, tables, strict=True):
            q, k = part.rotate(q, k, q_positions, k_positions, own)
        return q, k

    def key_state(self, x: Tensor) -> Tensor | None:
        states = [s for s in (part.key_state(x) for part in self._all) if s is not None]
        return torch.cat(states, dim=-1) if states else None

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor | None:
        return combined(
            torch.add,
            (part.bias(q, k, q_positions, k_positions, own) for part, own in self._states(state)),
        )

    def masked_bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None,
        mask: Tensor,
    ) -> Tensor | None:
        parts = self._states(state)
        return combined(
            torch.add,
            (part.masked_bias(q, k, q_positions, k_positions, own, mask) for part, own in parts),
        )

    def _states(self, state: Tensor | None) -> Iterator[tuple[Encoding, Tensor | None]]:
        """Each part with its share of the numbers that are kept of each token."""
        for part in self._all:
            own = None
            if state is not None and part.state_size:
                own, state = state[..., : part.state_size], state[..., part.state_size :]
            yield part, own

    @property
    def biased(self) -> bool:
        return any(part.biased for part in self._all)

    @property
    def has_form(self) -> bool:
        """A sum of two biases has none: it would take a kernel for each pair.

        Nor one that looks at queries and keys which another part changes: kernels see them last.
        """
        if sum(part.biased for part in self._all) > 1 or not all(p.has_form for p in self._all):
            return False
        scales = any(type(p).logit_scale is not Encoding.logit_scale for p in self._all)
        return not (self.content_dependent and (self.rotates or scales))

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        forms = [part.bias_form(length, device, state) for part in self._all]
        return next((form for form in forms if form.kind != NONE), Form())

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        return combined(torch.mul, (part.logit_scale(q_positions) for part in self._all))

    def shows(self, key: Tensor, query: Tensor) -> Tensor:
        """What no part hides, and what one keeps."""
        left = [part.shows(key, query) for part in self._all if part.hides]
        kept = [part.shows(key, query) for part in self._all if part.keeps]
        return functools.reduce(torch.logical_or, kept, functools.reduce(torch.logical_and, left))

    def sink_logit(self) -> Tensor | None:
        return combined(torch.logaddexp, (part.sink_logit() for part in self._all))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part in self.parts:
            part.reset_parameters(generator)  # type: ignore[operator]
