"""Options that are typed and checked: a mistake is one sentence."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pe._errors import explain


class Options(BaseModel):
    """Base class: fields are options, nothing is converted, and nothing changes once it is made.

    Raises ValueError for an option that is not there (the nearest is named) or a wrong value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    called: ClassVar[str] = "option"
    """What a message calls an option that is not there."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            lines = explain(error, self.called, type(self).model_fields)
            raise ValueError("; ".join(lines)) from None
