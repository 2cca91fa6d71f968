"""What a law is: a name, a sentence, when it is promised, and a function that measures.

A law's function gets a `Subject` and a `Measure`. It returns when the law holds and raises `Broken`
when it does not, `NotApplicable` when the encoding's traits do not promise it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pe.conformance.subject import Subject


class Broken(AssertionError):
    """The law does not hold; the message says where."""


class NotApplicable(Exception):
    """The encoding's traits do not promise the law; the message says which."""


class Measure:
    """Compares tensors and keeps the worst error, beside what was allowed there."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was seen so far."""
        self.error, self.allowed = 0.0, 0.0

    def keep_worse(self, other: Measure) -> None:
        """Take the error of another measure if it is the worse one for what was allowed there."""
        if other.allowed and (
            self.allowed == 0 or other.error / other.allowed > self.error / self.allowed
        ):
            self.error, self.allowed = other.error, other.allowed

    def close(self, what: str, got: Tensor, want: Tensor, atol: float, rtol: float) -> None:
        """Every element within ``atol + rtol |want|``, NaN and infinity nowhere."""
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
        if self.allowed == 0 or off / limit > self.error / self.allowed:
            self.error, self.allowed = off, limit
        if off > limit:
            raise Broken(f"{what}: off by {off:.2g}, allowed {limit:.1g}")

    def equal(self, what: str, got: Tensor, want: Tensor) -> None:
        """Every bit."""
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            raise Broken(
                f"{what}: {got.dtype} {tuple(got.shape)}, expected {want.dtype} {tuple(want.shape)}"
            )
        if not torch.equal(got, want):
            self.error = float((got.double() - want.double()).abs().max())
            raise Broken(f"{what}: not the same bits, off by {self.error:.2g}")


Test = Callable[["Subject", Measure], None]


class Law(NamedTuple):
    """One law: ``pe check`` prints its name and its sentence."""

    name: str
    sentence: str
    test: Test


LAWS: dict[str, Law] = {}


def law(test: Test) -> Test:
    """Function decorator: add a law to the suite, named by the function and told by its docstring.

    Laws run in the order of their definition.
    """
    name = test.__name__
    LAWS[name] = Law(name, (test.__doc__ or name).splitlines()[0], test)
    return test
