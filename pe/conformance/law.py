"""A law: its name, a sentence that states it, and a function that tests it on an encoding.

The function gets a `Subject` and a `Measure`. It returns if the law holds. It raises `Broken` if
the law does not hold, and `NotApplicable` if the encoding's traits do not promise it. A comment
above a law names published bugs that it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pe.conformance.subject import Subject


class Broken(AssertionError):
    """The law does not hold. The message says where."""


class NotApplicable(Exception):
    """The encoding's traits do not promise the law. The message says which trait is the reason."""


class Measure:
    """Compares tensors, and keeps the largest error relative to its tolerance."""

    def __init__(self) -> None:
        self.error, self.allowed = 0.0, 0.0

    def keep_worse(self, error: float, allowed: float) -> None:
        """Keep this error if it is a larger part of its tolerance than the one that is kept."""
        if allowed and (self.allowed == 0 or error / allowed > self.error / self.allowed):
            self.error, self.allowed = error, allowed

    def close(self, what: str, got: Tensor, want: Tensor, atol: float, rtol: float) -> None:
        """Require that all elements are finite and differ by at most ``atol + rtol |want|``.

        Raises:
            Broken: they do not, or the shapes differ. ``what`` names the tensor in the message.
        """
        if got.shape != want.shape:
            raise Broken(f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}")
        if not want.numel():
            return
        error = (got.detach().double() - want.detach().double()).abs()
        if not error.isfinite().all():
            raise Broken(f"{what}: not finite")
        allowed = atol + rtol * want.detach().double().abs()
        worst = int((error / allowed).argmax())
        off, limit = float(error.flatten()[worst]), float(allowed.flatten()[worst])
        self.keep_worse(off, limit)
        if off > limit:
            raise Broken(f"{what}: off by {off:.2g}, allowed {limit:.1g}")

    def equal(self, what: str, got: Tensor, want: Tensor) -> None:
        """Require that types, shapes and all bits are equal, or else raise `Broken`."""
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            raise Broken(
                f"{what}: {got.dtype} {tuple(got.shape)}, expected {want.dtype} {tuple(want.shape)}"
            )
        if not torch.equal(got, want):
            self.error = float((got.double() - want.double()).abs().max())
            raise Broken(f"{what}: not the same bits, off by {self.error:.2g}")


Test = Callable[["Subject", Measure], None]


class Law(NamedTuple):
    """A law, whose name and sentence ``pe check`` prints."""

    name: str
    sentence: str
    test: Test


LAWS: dict[str, Law] = {}


def law(test: Test) -> Test:
    """Decorate a function to add it to `LAWS`, which are tested in the order of their definition.

    The name of the law is that of the function, and its sentence the first line of the docstring.
    """
    name = test.__name__
    LAWS[name] = Law(name, (test.__doc__ or name).splitlines()[0], test)
    return test
