"""The named recipes, and `recipe`, which changes fields of them.

`small`, `medium` and `large` have about 55, 150 and 440 million parameters. `paper` is the budget
of the scaffold study: 16,000 steps of 64 x 1024 tokens, cosine 3e-4 -> 3e-5, 3% warmup, at about
340 million parameters. `59m`, `164m`, `470m` and `1200m` are named by their parameters and trained
on about 40 tokens per parameter; the larger two are for several GPUs.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pe._errors import GUIDE, unknown
from pe.recipes.recipe import Recipe

DEMO = Recipe(
    # About two minutes of training on two CPU cores, with text that comes with Python.
    name="demo",
    corpus="stdlib",
    vocab_size=4096,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=352,
    context_length=256,
    steps=480,
    batch_size=8,
    learning_rate=4e-3,
    min_learning_rate=4e-4,
    warmup_steps=48,
    checkpoint_every=120,
    validate_every=120,
    evaluation_lengths=(256, 512, 1024, 2048, 4096),
    target_tokens=128,
    evaluation_windows=24,
)

TINY = Recipe(
    # One GPU, 34 M parameters: 65,536 tokens per step.
    name="tiny",
    corpus="stdlib",
    vocab_size=16384,
    hidden_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
    intermediate_size=1408,
    context_length=1024,
    steps=1000,
    batch_size=64,
    learning_rate=1e-3,
    min_learning_rate=1e-4,
    warmup_steps=50,
    checkpoint_every=250,
    validate_every=250,
    evaluation_lengths=(1024, 2048, 4096, 8192, 16384),
)


def _sized(name: str, hidden: int, layers: int, heads: int, inner: int, **more: Any) -> Recipe:
    fields: dict[str, Any] = {
        "name": name,
        "corpus": "fineweb-edu",
        "vocab_size": 32768,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "steps": 16000,
        "learning_rate": 6e-4,
        "min_learning_rate": 6e-5,
        "warmup_steps": 480,
        "checkpoint_every": 1000,
        "validate_every": 1000,
    }
    return dataclasses.replace(TINY, **(fields | more))


# Corpora of the hub are streamed up to a budget; these hold a little more than the steps use.
SMALL = _sized("small", 512, 12, 8, 1408, corpus="fineweb-edu@1100M")
MEDIUM = _sized("medium", 768, 18, 12, 2048, corpus="fineweb-edu@1100M", micro_batch_size=32)
LARGE = _sized(
    "large", 1280, 20, 20, 3456, corpus="fineweb-edu@1100M", micro_batch_size=16,
    learning_rate=3e-4, min_learning_rate=3e-5,
)  # fmt: skip
PAPER = _sized(
    "paper", 1024, 24, 16, 2816, corpus="fineweb@1100M", micro_batch_size=32,
    learning_rate=3e-4, min_learning_rate=3e-5,
)  # fmt: skip

# Forty tokens per parameter. Batches grow with the model, because larger models can use larger
# batches (arXiv:1812.06162); rates have not been swept. The sample of fineweb-edu has 10 billion
# tokens, so the larger two read it about twice and five times.
M59 = _sized(
    "59m", 512, 12, 8, 1600, corpus="fineweb-edu@2500M", steps=36000, warmup_steps=1080,
    learning_rate=1e-3, min_learning_rate=1e-4,
)  # fmt: skip
M164 = _sized(
    "164m", 768, 18, 12, 2304, corpus="fineweb-edu@7G", steps=25000, warmup_steps=750,
    batch_size=256, micro_batch_size=32,
)  # fmt: skip
M470 = _sized(
    "470m", 1280, 20, 20, 3840, steps=36000, warmup_steps=1080,
    batch_size=512, micro_batch_size=16, learning_rate=4e-4, min_learning_rate=4e-5,
)  # fmt: skip
M1200 = _sized(
    "1200m", 2048, 22, 32, 5632, steps=46000, warmup_steps=1380,
    batch_size=1024, micro_batch_size=16, learning_rate=3e-4, min_learning_rate=3e-5,
)  # fmt: skip

DECLARED = "declared"
"""Stands for the ``encoding_rate`` that the encoding declares. A recipe holds the number, so its
meaning does not change if the encoding declares another one later."""
RECIPES: dict[str, Recipe] = {
    r.name: r for r in (DEMO, TINY, SMALL, MEDIUM, LARGE, PAPER, M59, M164, M470, M1200)
}


def spaced(pe: Any) -> Any:
    """Return a spec with the spaces that all recipes have: one after each comma, and no others.

    Spaces have no meaning in a spec, but they would change the hash of a recipe. A value that is
    not a string is returned as it is, and `Recipe` refuses it.
    """
    if not isinstance(pe, str):
        return pe
    return re.sub(r"\s*([+*(),=])\s*", r"\1", pe).strip().replace(",", ", ")


def recipe(name: str = "auto", **overrides: Any) -> Recipe:
    """Return a named recipe with some fields changed.

    Args:
        name: a key of `RECIPES`, or ``"auto"``: ``demo`` on a CPU, ``tiny`` on a CUDA GPU.
        overrides: any field of `Recipe`; spaces in ``pe`` do not matter (`spaced`). Some fields
            are scaled with another one unless they are given: ``evaluation_lengths`` with
            ``context_length``, ``warmup_steps`` and ``decay_steps`` with ``steps``, and
            ``min_learning_rate`` with ``learning_rate``. ``target_tokens`` becomes at most half of
            ``context_length``.
            ``encoding_rate`` may be ``"declared"``: the multiple that the encoding was registered
            with (`pe.encodings.core.parts.declared_rate`), as a number.

    Raises:
        ValueError: unknown recipe or field (the nearest is named), or a value of a wrong type.
    """
    if name == "auto":
        from pe.devices import choose

        name = "tiny" if choose().type == "cuda" else "demo"
    if name not in RECIPES:
        raise ValueError(f"{unknown('recipe', name, ['auto', *RECIPES])}; {GUIDE}")
    base = RECIPES[name]
    values = base.to_dict() | overrides
    values["pe"] = spaced(values["pe"])
    if values["encoding_rate"] == DECLARED:
        from pe.encodings.core.parts import declared_rate  # brings torch

        values["encoding_rate"] = declared_rate(values["pe"])
    length, steps = values["context_length"], values["steps"]
    if isinstance(length, int):
        if "evaluation_lengths" not in overrides:
            values["evaluation_lengths"] = [
                n * length // base.context_length for n in base.evaluation_lengths
            ]
        if "target_tokens" not in overrides:
            values["target_tokens"] = max(1, min(base.target_tokens, length // 2))
    if isinstance(steps, int):
        for key in ("warmup_steps", "decay_steps"):
            if key not in overrides:
                values[key] = round(getattr(base, key) * steps / base.steps)
    peak = values["learning_rate"]
    if isinstance(peak, (int, float)) and "min_learning_rate" not in overrides:
        floor = base.min_learning_rate / base.learning_rate * peak
        values["min_learning_rate"] = float(f"{floor:.6g}")
    return Recipe.from_dict(values)
