"""The papermill command that repeats a run, for records and for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from pe.recipes.named import RECIPES
from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import NOTEBOOK_PARAMETERS, Recipe


def notebook_parameters(recipe: Recipe, study: str) -> dict[str, Any]:
    """Return parameters of train.ipynb that give exactly ``recipe``, with its hash."""
    fields, base = recipe.to_dict(), recipe.name if recipe.name in RECIPES else "demo"
    values = {name: fields[name] for name in NOTEBOOK_PARAMETERS}
    start = recipe.start_from  # without one a run of 0 steps would be refused
    derived = named_recipe(base, **values, start_from=start).to_dict() | {"start_from": ""}
    changed = {name: value for name, value in fields.items() if value != derived[name]}
    changed.pop("name", None)
    values |= {"recipe": base, "study": study, "overrides": changed}
    return {key: value for key, value in values.items() if value not in ({}, "")}


def notebook_command(parameters: Mapping[str, Any], notebook: str = "train") -> str:
    """Return the command that runs a notebook with these parameters, as a line to paste."""
    import yaml

    # Not as JSON, whose 1e-05 is a text in YAML.
    line = yaml.safe_dump(dict(parameters), default_flow_style=True, width=10**6).strip()
    return shlex.join(["papermill", f"notebooks/{notebook}.ipynb", "-y", line])
