"""A sum of encodings: its hooks run in order, its biases add and its scales multiply."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding, Lengths, Prepared, tightest
from pe.encodings.core.forms import NONE, Form

ANY = (
    "length_dependent", "content_dependent", "mixes_heads", "random", "per_layer", "rotates",
    "embeds", "hides",
)  # fmt: skip
"""Traits that a sum has if at least one part has them."""


def combined(
    operation: Callable[[Tensor, Tensor], Tensor], terms: Iterable[Tensor | None]
) -> Tensor | None:
    """Return the terms that are not None, added or multiplied; None if there are none."""
    present = [term for term in terms if term is not None]
    return functools.reduce(operation, present) if present else None


class Composite(Encoding):
    """A sum of encodings, such as ``rope+alibi``. At most one part rotates.

    Args:
        parts: the encodings, in order.
        borrowed: parts that belong to the composite of another layer. They are used here but are
            not submodules, so that a shared parameter is saved and trained once.
    """

    def __init__(self, parts: Sequence[Encoding], borrowed: Sequence[Encoding] = ()) -> None:
        super().__init__()
        self.parts = nn.ModuleList(p for p in parts if p not in borrowed)
        self._all = tuple(parts)  # nn.Module does not register the modules of a tuple
        # Traits follow from the parts, so they are set on the instance.
        self.relative = all(p.relative for p in parts)
        for trait in ANY:
            setattr(self, trait, any(getattr(p, trait) for p in parts))
        self.state_size = sum(p.state_size for p in parts)  # type: ignore[misc]
        self.form_kind = next((p.form_kind for p in parts if p.form_kind != NONE), NONE)
        self.max_positions, self.limited_by = tightest(parts)
        self._refuse_moves_beyond()

    def _refuse_moves_beyond(self) -> None:
        """Raise ValueError if a part moves tokens to positions that another part does not have."""
        limit, name = self.max_positions, self.limited_by
        for end, mover in (tightest([p]) for p in self._all if p.random):
            if end is not None and limit is not None and limit < end:
                raise ValueError(
                    f"{mover} moves tokens to positions up to {end - 1}, and the largest "
                    f"position of {name} is {limit - 1}: increase that (table_size of learned) "
                    "or decrease the first (max_position of randomized)"
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
            if part.random:  # one draw moves the tokens for all parts and documents
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
        """Yield each part with its share of the key state."""
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
        """Whether the sum has a bias spec for kernels.

        A sum of two biases has none, because each combination would need a kernel. A bias that
        depends on queries and keys has none if another part changes these, because kernels get the
        changed ones only.
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
        """Return which keys are visible: those that no part hides or that one part keeps."""
        left = [part.shows(key, query) for part in self._all if part.hides]
        kept = [part.shows(key, query) for part in self._all if part.keeps]
        return functools.reduce(torch.logical_or, kept, functools.reduce(torch.logical_and, left))

    def sink_logit(self) -> Tensor | None:
        return combined(torch.logaddexp, (part.sink_logit() for part in self._all))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part in self.parts:
            part.reset_parameters(generator)  # type: ignore[operator]
