"""What a training raises that was asked to stop."""

from __future__ import annotations

from pe._errors import Explained


class Interrupted(RuntimeError, Explained):
    """Training was asked to stop, and saved a checkpoint before it did."""

    def __init__(self, message: str, signal: str | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        """Name of the signal; None where another process got it."""
