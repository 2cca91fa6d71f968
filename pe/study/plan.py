"""Turn the file of a study (`pe.study.file`) into its runs with their recipes. Imports no torch."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pe._errors import unknown
from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import Recipe
from pe.runs.parameters import refuse_strange_study
from pe.study.file import RunEntry, StartEntry, StudyFile, is_share, steps_of
from pe.study.planned import Planned
from pe.study.reading import Mistakes, mistakes_in, read_study, study_file
from pe.study.zero_shot import ZeroShot
from pe.training import processes
from pe.training.check import check_run
from pe.training.start import check_sizes, takes_searched_factors

OWN_SHARES = ("warmup_steps", "decay_steps", "checkpoint_every", "validate_every")
"""Fields that may be shares of the run's own steps."""
Asked = Callable[[str, int], bool]
"""Whether the run with this label and seed is to be checked."""


def load_plan(study: str, *, mini: bool = False, check: bool = False) -> list[Planned]:
    """Return the runs of a study in the file's order, parents before the runs that start from them.

    Args:
        study: a name or a path.
        mini: return the miniature of the study, which is recorded as ``NAME-mini``.
        check: also check encodings, their options, corpora and tokenizers (`check_run`), for which
            torch is imported.

    Raises:
        ValueError: the file has mistakes; one line for each, with its place in the file.
    """
    return _planned(study, mini, (lambda label, seed: True) if check else None, ())


def _planned(
    study: str, mini: bool, check: Asked | None, within: tuple[Path, ...]
) -> list[Planned]:
    """Return the plan of a study.

    Args:
        check: which runs to check as in `load_plan`; None: none.
        within: files of studies that are being planned and whose runs start from this study.
    """
    path, file = read_study(StudyFile, study, mini=mini)
    if check is not None:
        processes.wanted()  # its mistakes are not in the file
    with mistakes_in(path):
        name = f"{path.stem}-mini" if mini else path.stem
        refuse_strange_study(name)
        within = (*within, path.resolve())
        seeds = [_Seed(name, file, seed, mini, within) for seed in file.seeds]
        return [planned for one in seeds for planned in one.plan(check)]


def load_part(word: str, *, mini: bool = False, check: bool = False) -> list[Planned]:
    """Return the runs that ``STUDY[/LABEL][:SEEDS]`` names.

    Args:
        word: a study as `load_plan` takes it, perhaps with the label of a run or a pattern of
            labels (`fnmatch`), and perhaps with seeds such as 0,1.
        check: as in `load_plan`, for the runs that are named. So a record that the present code
            could not continue does not stop others of its study.

    Raises:
        ValueError: as in `load_plan`, or the study has no such run or seed.
    """
    match = re.fullmatch(
        r"(?P<study>.*\.ya?ml|[^/]*?)(/(?P<label>.+?))?(:(?P<seeds>\d+(,\d+)*))?", word
    )
    if match is None:  # a path without an ending, which `load_plan` refuses
        return load_plan(word)
    study, label, seeds = match.group("study", "label", "seeds")
    wanted = {int(seed) for seed in seeds.split(",")} if seeds else set()

    def asked(name: str, seed: int) -> bool:
        return fnmatch.fnmatchcase(name, label or "*") and (not seeds or seed in wanted)

    plan = _planned(study, mini, asked if check else None, ())
    if label:
        labels = list(dict.fromkeys(planned.label for planned in plan))
        plan = [planned for planned in plan if fnmatch.fnmatchcase(planned.label, label)]
        if not plan:
            raise ValueError(f"{word}: {unknown(f'run of {study}', label, labels)}")
    if seeds:
        known = sorted({planned.recipe.seed for planned in plan})
        if not wanted <= set(known):
            name = word.removesuffix(f":{seeds}")
            raise ValueError(f"{word}: the seeds of {name} are {', '.join(map(str, known))}")
        plan = [planned for planned in plan if planned.recipe.seed in wanted]
    return plan


def load_plans(words: Sequence[str], *, mini: bool = False, check: bool = False) -> list[Planned]:
    """Return the runs of several studies; a run that is named several times is listed once.

    Args:
        words: as `load_part` takes them.

    Raises:
        ValueError: an unknown study, or runs or seeds that it does not have.
    """
    plans: dict[str, Planned] = {}
    for word in words:
        for planned in load_part(word, mini=mini, check=check):
            plans.setdefault(planned.key, planned)
    return list(plans.values())


class _Seed:
    """Plans the runs of a study for one seed."""

    def __init__(
        self, study: str, file: StudyFile, seed: int, mini: bool, within: tuple[Path, ...]
    ) -> None:
        self.study, self.file, self.seed, self.mini, self.within = study, file, seed, mini, within
        self.base = named_recipe(file.recipe, **_plain(file.set))
        self.planned: dict[str, Planned] = {}
        self.kept: dict[str, list[int | str]] = {}
        """The steps at which other runs start from a run, by its label."""
        self.elsewhere: dict[str, list[Planned]] = {}
        """The plans of other studies from which runs of this one start, by name."""
        for entry in file.runs.values():
            if entry.start:
                self.kept.setdefault(entry.start.run, []).append(entry.start.at)

    def plan(self, check: Asked | None) -> list[Planned]:
        """Return all runs; a zero-shot task comes after the run that it extends.

        Args:
            check: as in `_planned`.
        """
        mistakes = Mistakes()
        broken: set[str] = set()
        wrong: dict[str, list[str]] = {}  # reason -> labels, as one mistake may be in all runs
        for label, entry in self._entries(mistakes):
            if entry.seeds is not None and self.seed not in entry.seeds:
                continue
            if entry.start and entry.start.run in broken:
                broken.add(label)  # its own mistakes are reported once its parent has none
                continue
            try:
                for one in self._run(label, entry):
                    if one.label in self.planned:
                        raise ValueError(f"two runs have the label {one.label!r}; rename one")
                    self.planned[one.label] = one
                    if check is not None and check(one.label, self.seed):
                        check_run(one.run())
            except ValueError as error:
                if label not in self.planned:
                    broken.add(label)
                wrong.setdefault(str(error), []).append(label)
        for reason, (first, *more) in wrong.items():
            others = f" and {len(more)} more" if more else ""
            mistakes.append(f"runs.{first}{others}: {reason}")
        plan = list(self.planned.values())
        names = [p.name for p in plan]
        mistakes += [
            f"runs.{p.label}: two runs have the same recipe; it is {p.name}"
            for p in plan
            if names.index(p.name) != plan.index(p)
        ]
        if self.file.zero_shot and self.file.zero_shot.run not in broken:
            with mistakes.at("zero_shot"):
                task = self._zero_shot(self.file.zero_shot)
                if check is not None and check(task.label, self.seed):
                    _check_extension(task)
                of_this = task.recipe.start_from.startswith(f"{self.study}/")
                waiting = [p for p in plan if takes_searched_factors(p.recipe)]
                ready = [p for p in plan if p not in waiting]
                waiting = [dataclasses.replace(p, parent=task.key) for p in waiting]
                plan = [*ready, task, *waiting] if of_this else [task, *ready, *waiting]
        mistakes += [
            f"runs.{p.label}: long_factor: searched for by no zero_shot part of this study; "
            "expected one of the run that this one starts from, with longrope and its factor"
            for p in plan
            if takes_searched_factors(p.recipe) and not self._searched(p.recipe, plan)
        ]
        mistakes.refuse()
        return plan

    def _searched(self, recipe: Recipe, plan: Sequence[Planned]) -> bool:
        """Return whether a task of the plan finds the factors that a run asks for."""
        start = (
            recipe.start_from if "/" in recipe.start_from else f"{self.study}/{recipe.start_from}"
        )
        return any(
            task.zero_shot
            and task.recipe.start_from == start
            and recipe.pe_options.get("factor") in task.zero_shot.searched(task.recipe)
            for task in plan
        )

    def _entries(self, mistakes: Mistakes) -> Iterator[tuple[str, RunEntry]]:
        """Yield the runs of the file with their labels, one for each rate of a sweep."""
        for label, entry in self.file.runs.items():
            with mistakes.at(f"runs.{label}"):
                yield from entry.sweep(label, self.file.rates)

    def _run(self, label: str, entry: RunEntry) -> list[Planned]:
        """Return a run and its branches."""
        base, parent = self.base, None
        fields = {**self.file.set, **entry.set}
        decay = fields.get("decay_steps", base.decay_steps)
        fields["steps"] = steps = steps_of("steps", fields.get("steps", base.steps), base.steps)
        for name in OWN_SHARES:
            if name in fields:
                fields[name] = steps_of(name, fields[name], steps)
        fields["keep_steps"] = tuple(
            steps_of("keep_steps", at, steps) for at in fields.get("keep_steps", base.keep_steps)
        )
        if not steps:  # nothing is trained, so these would have no effect
            fields |= {"retrieval_share": 0.0, "dropout": 0.0}
            fields |= {"checkpoint_every": base.checkpoint_every}
        fields |= {"pe": entry.pe, "pe_options": entry.pe_options, "seed": self.seed}
        if entry.start:
            parent, begins = self._start(entry.start)
            fields |= begins
        if label in self.kept:
            marks = {_at(at, base.steps, steps) for at in self.kept[label]}
            marks = {mark for mark in marks if mark > 0} | set(fields["keep_steps"])
            fields["keep_steps"] = tuple(sorted(mark for mark in marks if mark < steps))
        if entry.branches and (fields.get("schedule", base.schedule) != "wsd" or not decay):
            raise ValueError("branches need a plateau: set schedule: wsd and decay_steps, say 20%")
        ends = {
            f"{label}@{share}": steps_of("branches", share, base.steps) for share in entry.branches
        }
        decays = {name: steps_of("decay_steps", decay, end) for name, end in ends.items()}
        if ends:
            fields["keep_states"] = tuple(
                sorted({end - decays[name] for name, end in ends.items()})
            )
        run = Planned(label, named_recipe(base.name, **fields), self.study, parent)
        if entry.start:
            check_sizes(run.recipe, self._source(entry.start.run).recipe)
        branches = [
            Planned(name, _branch(run.recipe, name, end, decays[name]), self.study, run.key)
            for name, end in ends.items()
        ]
        return [run, *branches]

    def _start(self, start: StartEntry) -> tuple[str | None, dict[str, Any]]:
        """Return the fields of a recipe that starts there, and the key of its parent.

        The key is None for a run of another study, which must exist already.
        """
        source = self._source(start.run)
        ours = source.study == self.study
        of = self.base.steps if ours else source.recipe.steps
        at = _at(start.at, of, source.recipe.steps)
        if not 0 < at <= source.recipe.steps:
            raise ValueError(f"starts at step {at}, which {start.run!r} does not have")
        if ours:
            return source.key, {"start_from": source.name, "start_step": at}
        kept = (*source.recipe.keep_steps, *source.recipe.keep_states, source.recipe.steps)
        if at not in kept:
            steps = ", ".join(map(str, kept))
            raise ValueError(f"starts at step {at} of {start.run!r}, which keeps {steps}")
        return None, {"start_from": f"{source.study}/{source.name}", "start_step": at}

    def _source(self, name: str) -> Planned:
        """Return a run of this study by its label, or of another study by STUDY/LABEL."""
        if name in self.planned:
            return self.planned[name]
        entry = self.file.runs.get(name)
        if entry and self.seed not in (entry.seeds or self.file.seeds):
            raise ValueError(f"starts from {name!r}, which has no seed {self.seed}; add it there")
        if "/" not in name:
            known = ", ".join(self.planned) or "none"
            raise ValueError(f"starts from {name!r}; expected STUDY/RUN or one of: {known}")
        study, _, label = name.partition("/")
        if study not in self.elsewhere:
            if study_file(study).resolve() in self.within:
                raise ValueError(
                    f"starts from {name!r}, and runs of {study} start from this study; only one "
                    "of two studies may start from the other. A run of this file is named by its "
                    "label alone"
                )
            self.elsewhere[study] = _planned(study, self.mini, None, self.within)
        there = {p.label: p for p in self.elsewhere[study] if p.recipe.seed == self.seed}
        if label not in there:
            known = ", ".join(there) or "none"
            raise ValueError(f"starts from {name!r}; runs there with seed {self.seed}: {known}")
        return there[label]

    def _zero_shot(self, wanted: ZeroShot) -> Planned:
        """Return the task that extends the last weights of a run, of this study or another."""
        source = self._source(wanted.run)
        recipe = dataclasses.replace(
            source.recipe, start_from=f"{source.study}/{source.name}",
            start_step=source.recipe.steps, keep_steps=(), keep_states=(),
        )  # fmt: skip
        return Planned("zero-shot", recipe, self.study, zero_shot=wanted)


def _check_extension(task: Planned) -> None:
    """Raise ValueError if a method cannot extend the run, before that is trained."""
    from pe.encodings.core.change import changed_options
    from pe.encodings.core.extension import extension_method

    assert task.zero_shot is not None, "made by _zero_shot"
    for method in task.zero_shot.methods:
        spec = extension_method(method).spec
        changed_options(task.recipe.pe, task.recipe.pe_options, spec, {})


def _branch(recipe: Recipe, name: str, end: int, decay: int) -> Recipe:
    """Return the recipe of a branch: the decay of a run like ``recipe`` with ``end`` steps."""
    leaves, first, last = end - decay, recipe.warmup_steps, recipe.steps - recipe.decay_steps
    if not first <= leaves <= last or not 0 < decay < end:
        raise ValueError(
            f"branch {name} of {end} steps would leave after step {leaves}; the plateau lasts from "
            f"{first} to {last}"
        )
    return dataclasses.replace(
        recipe, start_from=recipe.run_name(), start_step=leaves, start_state="all",
        steps=decay, warmup_steps=0, decay_steps=decay, keep_steps=(), keep_states=(),
    )  # fmt: skip


def _at(value: int | str, of: int, steps: int) -> int:
    return steps if value == "end" else steps_of("at", value, of)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not depend on the number of steps of a run."""
    own = (*OWN_SHARES, "keep_steps")
    return {k: v for k, v in fields.items() if k not in own and not is_share(v)}
