"""Rows of runs, and their titles.

A row is one configuration with all its seeds: an entry of ``runs:`` in studies/NAME.yaml, or runs
that differ in nothing but their seed. Rows are compared on the seeds that they have in common
(`comparable`). Imports no torch but for titles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from pe.recipes.recipe import NEW_FIELD_DEFAULTS
from pe.results import quantities
from pe.results.quantities import RunLike, label
from pe.study.plan import load_plan
from pe.study.planned import Planned
from pe.study.reading import study_file


@dataclass(frozen=True)
class Row:
    """One configuration of a study."""

    label: str
    """Its name in the YAML, or the encoding where there is no YAML."""
    title: str
    """The name that readers see."""
    origin: str
    """The encoding that it was trained with first."""
    runs: tuple[RunLike, ...]
    """The runs are in the order of their seeds."""

    @property
    def pe(self) -> str:
        """The encoding of the runs."""
        return str(self.runs[0].read()["pe"])

    @property
    def converted(self) -> bool:
        """Whether the runs started from weights that were trained with another encoding."""
        return self.origin != self.pe

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs: each decides the initial weights and the order of the text."""
        return tuple(int(run.read()["seed"]) for run in self.runs)

    def of(self, seeds: Iterable[int]) -> Row:
        """Return the row with only these of its seeds."""
        by_seed = dict(zip(self.seeds, self.runs, strict=True))
        return replace(self, runs=tuple(by_seed[seed] for seed in seeds))

    def each(self) -> list[Row]:
        """Return one row per seed."""
        return [replace(self.of([seed]), title=f"{self.title}, seed {seed}") for seed in self.seeds]


def planned(study: str) -> bool:
    """Return whether the study has a YAML, which names its rows."""
    try:
        study_file(study)
    except ValueError:
        return False
    return True


def rows(study: str, runs: Sequence[RunLike], plan: Sequence[Planned] | None = None) -> list[Row]:
    """Return the rows of a study in the YAML's order.

    Runs that the YAML does not name come last.
    """
    if plan is None:
        plan = load_plan(study) if planned(study) else []
    by_name = {run.name: run for run in runs}
    members: dict[str, list[RunLike]] = {}
    for entry in plan:
        if entry.name in by_name:
            members.setdefault(entry.label, []).append(by_name.pop(entry.name))
    named_rows = {name: _row(name, of) for name, of in members.items()}
    for row in grouped(list(by_name.values())):
        name = row.label if row.label not in named_rows else row.title
        named_rows[name] = replace(row, label=name)
    return _told_apart(list(named_rows.values()))


def grouped(runs: Iterable[RunLike]) -> list[Row]:
    """Return one row per set of runs that differ only in their seed, in the registry's order.

    Raises:
        TypeError: something else than runs is given, or a run without a list.
    """
    from pe.encodings import in_order

    listed = list(runs) if isinstance(runs, Iterable) else []
    if not isinstance(runs, Iterable) or not all(hasattr(run, "read") for run in listed):
        raise TypeError(f"expected a list of runs, as pe.runs.find() makes one, got {runs!r}")
    members: dict[str, list[RunLike]] = {}
    for run in listed:
        setting = json.dumps(_setting(run.read()["recipe"]), sort_keys=True)
        members.setdefault(setting, []).append(run)
    groups = [_row(str(of[0].read()["pe"]), of) for of in members.values()]
    order = in_order(row.pe for row in groups)
    return sorted(_told_apart(groups), key=lambda row: (order.index(row.pe), row.title))


def _row(name: str, members: Sequence[RunLike]) -> Row:
    runs = sorted(members, key=lambda run: (run.read()["seed"], run.name))
    return Row(name, *named(runs[0].read()["recipe"]), tuple(runs))


def common_seeds(found: Sequence[Row]) -> list[int]:
    """Return the seeds that all rows have."""
    return sorted(set.intersection(*(set(row.seeds) for row in found))) if found else []


def comparable(found: Sequence[Row]) -> list[Row]:
    """Return the rows on the seeds that all have, or one row per seed if there is no such seed.

    A mean stands beside means of the same seeds only: seeds of one encoding differ by more than
    many encodings of one seed.
    """
    common = common_seeds(found)
    if common:
        return [row.of(common) for row in found]
    return [one for row in found for one in (row.each() if len(row.runs) > 1 else [row])]


def ceilings(found: Sequence[Row]) -> list[Row]:
    """Return rows trained on longer windows than another of that encoding, with as many tokens.

    At the longer length they say what more context is worth.
    """

    def tokens(row: Row) -> tuple[Any, ...]:
        r = row.runs[0].read()["recipe"]
        trained = r["steps"] * r["batch_size"] * r["context_length"]
        return r["pe"], r.get("corpus"), r["hidden_size"], r["num_hidden_layers"], trained

    by_tokens: dict[tuple[Any, ...], list[RunLike]] = {}
    for row in found:
        by_tokens.setdefault(tokens(row), []).extend(row.runs)
    length = quantities.trained_length
    return [row for row in found if length(row.runs) > length(by_tokens[tokens(row)])]


NO_EFFECT = (
    "name", "checkpoint_every", "keep_steps", "keep_states", "log_every", "validate_every",
    "keep_best", "activation_checkpointing", "fsdp", "evaluation_lengths",
)  # fmt: skip
"""Fields of a recipe that change neither the weights nor what a perplexity means."""


def _setting(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without its seed and without the fields that change no result."""
    recipe = {
        key: value
        for key, value in recipe.items()
        if key not in (*NO_EFFECT, "seed")
        and not (key in NEW_FIELD_DEFAULTS and value == NEW_FIELD_DEFAULTS[key])
    }
    if recipe.get("start_from"):  # each seed starts from another run of the same encoding
        recipe["start_from"] = _encoding_of(recipe["start_from"])
    return recipe


LONGEST_TITLE = 30
"""Characters of an encoding's title that a line of a table has room for."""


def _told_apart(found: Sequence[Row]) -> list[Row]:
    """Return rows with distinct titles: by their recipes, or by their names if these are equal."""
    titles = titled([row.runs[0].read()["recipe"] for row in found])
    return [
        replace(
            row,
            title=short(row.pe, title, row.label)
            if titles.count(title) == 1
            else f"{title} ({row.label})",
        )
        for row, title in zip(found, titles, strict=True)
    ]


def short(pe: str, title: str, name: str) -> str:
    """Return the title of a row, or its name in the study if a schedule makes it too long."""
    return name if len(label(pe)) > LONGEST_TITLE and len(name) < len(title) else title


def titled(recipes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return titles for readers. Equal ones get as many recipe fields as tell them apart.

    ``RoPE (steps 100)``, ``RoPE (steps 500)`` and ``RoPE, trained on 4,096 tokens``.
    """
    titles, lengths = [named(r)[0] for r in recipes], [r["context_length"] for r in recipes]
    for i, (recipe, length) in enumerate(zip(recipes, lengths, strict=True)):
        how = " on" if _is_trained_further(recipe) else ", trained on"
        titles[i] += f"{how} {length:,} tokens" if length > min(lengths) else ""
    settings = [_setting(recipe) for recipe in recipes]
    options = {key for setting in settings for key in setting.get("pe_options", {})}
    settings = [setting | setting.pop("pe_options", {}) for setting in settings]
    result = []
    for title, own in zip(titles, settings, strict=True):
        rivals = [r for r, other in zip(settings, titles, strict=True) if other == title]
        differs = [key for key in _telling(rivals, options) if key in own]
        texts = [f"{own[k]:g}" if isinstance(own[k], float) else str(own[k]) for k in differs]
        words = (key.replace("_", " ") for key in differs)
        more = ", ".join(map(" ".join, zip(words, texts, strict=True)))
        result.append(f"{title} ({more})" if more else title)
    return result


def _telling(group: Sequence[Mapping[str, Any]], options: set[str]) -> list[str]:
    """Return fields that tell all recipes of a group apart that differ at all.

    They are all ``options`` of the encoding that differ, and fields of the recipe that tell more of
    them apart: the number of steps, for example, and not the warm-up, which is a share of them.
    """
    fields = list(dict.fromkeys(key for recipe in group for key in recipe))
    pairs = [
        {key for key in fields if one.get(key) != other.get(key)}
        for one, other in combinations(group, 2)
    ]
    chosen = options & set().union(*pairs)
    while pairs := [differs for differs in pairs if differs and not differs & chosen]:
        chosen.add(max(fields, key=lambda key: sum(key in differs for differs in pairs)))
    return [key for key in fields if key in chosen]


def named(recipe: Mapping[str, Any]) -> tuple[str, str]:
    """Return a run's title for readers, and the encoding that it was trained with first."""
    origin, title = recipe["pe"], label(recipe["pe"])
    if _is_trained_further(recipe):
        origin = _encoding_of(recipe["start_from"])
        step = f"{recipe.get('start_step', 0):,}"
        change = f"dropped at {step}" if recipe["pe"] == "nope" else f"as {title} from step {step}"
        change = f"trained further from step {step}" if recipe["pe"] == origin else change
        title = f"{label(origin)}, {change}"
    elif recipe.get("start_from"):
        title += f", {recipe['start_step'] + recipe['steps']:,} steps"
    return title, origin


def _is_trained_further(recipe: Mapping[str, Any]) -> bool:
    """Whether a run starts from the weights of another; if not, it may be a branch of one."""
    return bool(recipe.get("start_from")) and recipe.get("start_state") != "all"


def _encoding_of(name: str) -> str:
    """Return ``rope`` for ``study/rope-s0-1a2b3c4d``."""
    return re.sub(r"-s\d+-[0-9a-f]{8}$", "", name.rstrip("/").rpartition("/")[2])
