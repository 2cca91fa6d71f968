"""Live curves in TensorBoard or Weights & Biases, beside the record of the run.

The environment variable ``PE_TRACKERS``, such as ``tensorboard,wandb``, asks for them.
"""

from __future__ import annotations

import os
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from pe._errors import one_line, unknown
from pe.runs import Run, RunError

TRACKERS = ("tensorboard", "wandb")


def wanted() -> list[str]:
    """Return the names of the trackers that ``PE_TRACKERS`` asks for.

    Raises:
        ValueError: a name is not among `TRACKERS`, or its package is not installed. (accelerate
            would silently leave it out.)
    """
    names = [name.strip() for name in os.environ.get("PE_TRACKERS", "").split(",")]
    names = [name for name in names if name]
    installed = {str(getattr(t, "value", t)) for t in get_available_trackers()}
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker in PE_TRACKERS", name, TRACKERS)
        if name not in installed:
            raise ValueError(
                f"PE_TRACKERS asks for {name}, which is not installed; "
                f"pip install {name}, or leave it out"
            )
    return names


def start(accelerator: Accelerator, run: Run) -> None:
    """Open the trackers.

    TensorBoard writes its events below <run>/trackers/; wandb opens a run with this run's name.

    Raises:
        RunError: a tracker cannot be opened, for example without network or login.
    """
    values = run.recipe.to_dict().items()
    config = {k: v if isinstance(v, (int, float, str, bool)) else str(v) for k, v in values}
    options: dict[str, dict[str, Any]] = {"wandb": {"name": run.name, "group": run.study}}
    try:
        accelerator.init_trackers("pe", config=config, init_kwargs=options)
    except Exception as error:  # the services raise errors of many types
        raise RunError(
            f"PE_TRACKERS={os.environ['PE_TRACKERS']} cannot be opened ({one_line(error)}); "
            "log in, set WANDB_MODE=offline, or leave it out"
        ) from error


def finish(accelerator: Accelerator) -> None:
    """Close the trackers, so that the last values of an interrupted run are not lost."""
    for tracker in accelerator.trackers:
        tracker.finish()
