"""Methods that extend a trained rotary model without training, by name."""

from __future__ import annotations

from pe.encodings.core.extension import Method
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.parts import takes_option
from pe.encodings.core.registry import in_order, list_encodings, lookup, variants


def extension_methods() -> list[str]:
    """Names of the methods that extend a trained rotary model without training.

    These are the transforms that learn nothing and the variants that encodings declare, such as
    ``dynamic_yarn``. A transform that does not stretch is listed alone and on top of the transform
    that its class names.
    """
    methods = list(variants())
    for name in list_encodings():
        part = lookup(name)
        if issubclass(part, FrequencyTransform) and not part.learns:
            methods += [name, *([f"{part.put_on}+{name}"] if part.put_on else [])]
    return in_order(methods)


def extension_method(name: str) -> Method:
    """The method of this name, which is one of `extension_methods` or another spec.

    Raises:
        ValueError: ``name`` cannot be looked up.
    """
    if name in (declared := variants()):
        return declared[name]
    scaled = takes_option(name, "factor")
    return Method(
        name, name, lambda rope, factor: {"factor": float(factor)} if scaled else {}, scaled
    )
