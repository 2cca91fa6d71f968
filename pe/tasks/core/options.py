"""Options with types. A wrong name or value gives an error message of one sentence."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pe._errors import explain


class Options(BaseModel):
    """Base class whose fields are the options. Values are not converted, and an instance is frozen.

    Raises:
        ValueError: an unknown option (the message names the nearest known one) or a wrong value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    called: ClassVar[str] = "option"
    """What an error message calls an unknown option."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            lines = explain(error, self.called, type(self).model_fields)
            raise ValueError("; ".join(lines)) from None
