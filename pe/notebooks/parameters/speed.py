"""The speeds that speed.ipynb measures."""

from __future__ import annotations

from pe.notebooks.parameters.common import (
    Count,
    Positive,
    Switch,
    Words,
    launcher,
    refuse_strange_study,
    whole_numbers_in,
    words_in,
)
from pe.speed.record import SpeedRun


@launcher
def configure_speed(
    name: str | None = None,
    recipe: str = "auto",
    encodings: str | None = None,
    lengths: Words | None = None,
    modes: str | None = None,
    peers: str | None = None,
    tokens: Count | None = None,
    repeats: Count | None = None,
    minutes: Positive | None = None,
    compiled: Switch | None = None,
    deterministic: Switch = False,
) -> SpeedRun:
    """Return the folder and settings of the speed run that these parameters describe.

    Writes nothing.

    Raises:
        ValueError: an unknown name (the nearest is named), or lengths that do not fit the tokens.
    """
    from pe.speed import rig
    from pe.speed.record import default_name, speed_run

    chosen = rig("plan").settings(
        recipe=recipe,
        tokens=tokens or 0,
        lengths=whole_numbers_in(lengths, "lengths"),
        modes=words_in(modes),
        encodings=words_in(encodings),
        peers=() if peers == "none" else words_in(peers) or None,
        repeats=repeats or 0,
        compiled=compiled,
        deterministic=deterministic,
    )
    if name:
        refuse_strange_study(name)
    run = speed_run(name or default_name(chosen.recipe))
    run.settings = chosen
    return run
