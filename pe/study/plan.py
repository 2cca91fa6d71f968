"""From studies/NAME.yaml to a list of runs, each a complete recipe.

    title: what the study asks
    recipe: tiny                      # the recipe all runs start from
    set: {steps: 8000}                # fields that differ from it, for all runs
    seeds: [0, 1, 2]
    runs:
      rope: {pe: rope}
      rope-dropped-10:                # goes on from another run of the study
        pe: nope
        start: {run: rope, at: 10/16}
        set: {steps: 6/16, learning_rate: 1.0e-4}
      yarn:                             # goes on from a run of another study
        pe: yarn
        start: {run: scaffold/rope, at: end}
      pope:                             # with schedule wsd: runs of fewer steps, too
        pe: pope
        branches: [1/4, 1/2]
    zero_shot: {run: rope, factors: [2, 4]}  # one more task (`pe.study.zero_shot`)
    mini: {recipe: demo, set: {...}}  # the same study in miniature, for a CPU

``steps``, ``at`` and ``branches`` may be fractions of the study's steps, ``warmup_steps``,
``decay_steps`` and ``checkpoint_every`` of the run's own. A run that others start from keeps the
checkpoints they need. The miniature of a study starts from miniatures of others.
A branch of b steps shares the first of them with its run and has its own decay, ``decay_steps`` of
b; it is named ``pope@1/4``. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from pe._errors import unknown
from pe.runs import Folder, Run, root
from pe.study.zero_shot import ZeroShot
from pe.training.recipe import Recipe
from pe.training.recipes import recipe as named_recipe
from pe.training.start import AGAIN

FOLDER = Path(__file__).resolve().parents[2] / "studies"
KEYS = ("title", "recipe", "set", "seeds", "runs", "zero_shot", "mini")
RUN_KEYS = ("pe", "pe_options", "start", "set", "seeds", "branches")
OWN_SHARES = ("warmup_steps", "decay_steps", "checkpoint_every", "validate_every")


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run of a study."""

    label: str
    """Its name in the YAML."""
    recipe: Recipe
    study: str
    parent: str | None = None
    """Name of the run that has to be done before it: of this study, or one to train again."""
    again: bool = False
    """A complete run that is trained once more for its lost weights (`pe.study.parents`)."""
    zero_shot: ZeroShot | None = None
    """Nothing to train: what the recipe starts from is measured, extended by other encodings."""

    @property
    def name(self) -> str:
        """Its folder in that of the study: encoding, seed, hash."""
        if self.zero_shot:
            return f"extension of {self.recipe.start_from}"
        name = self.recipe.run_name()
        return f"{AGAIN}/{name}" if self.again else name

    def run(self) -> Run:
        """The run's folder and record, with this recipe; of a zero-shot task, those it extends."""
        if self.zero_shot:
            return Run(root() / self.recipe.start_from)
        return Run(root() / self.study / self.name, recipe=self.recipe)

    def done(self) -> bool:
        """Trained and evaluated as its recipe asks; of one trained again, the weights are there."""
        from pe.study.complete import complete

        if self.zero_shot:
            return not self.zero_shot.missing(self.run())
        return complete(self.run())

    def past_its_start(self) -> bool:
        """Whether the weights that it starts from are needed no more."""
        if self.zero_shot:
            return self.done()
        return self.run().exists() and self.run().read()["status"] == "complete"


class StudyFolder(Folder):
    """A study as the notebook command sees it: a folder to hold, and to put the page into.

    It has no record of its own; what came of the study is in the records of its runs.
    """

    depth = 1

    def __init__(
        self, plan: Sequence[Planned], *, dry_run: bool = False, workers: int | None = 1
    ) -> None:
        super().__init__(root() / plan[0].study)
        self.plan, self.dry_run, self._workers = list(plan), dry_run, workers
        self.notebook = "plan.ipynb" if dry_run else "study.ipynb"

    @property
    def workers(self) -> int:
        """How many share the work; 1 where that is not known. None was: as many as GPUs."""
        from pe.study.devices import workers_here

        return workers_here(self._workers)


def study_file(study: str) -> Path:
    """The YAML of a study by name (studies/NAME.yaml) or path. ValueError if there is none."""
    path = Path(study)
    if path.suffix in (".yaml", ".yml"):
        if not path.exists():
            raise ValueError(f"study file {study!r} does not exist")
        return path
    folder = FOLDER
    if not folder.is_dir():  # an installed package: the studies of the folder one works in
        folder = Path.cwd() / "studies"
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    if study not in known:
        raise unknown("study", study, known)
    return folder / f"{study}.yaml"


def load_plan(study: str, *, mini: bool = False) -> list[Planned]:
    """The runs of a study in the order of the file, parents before the runs that start from them.

    Args:
        study: a name or a path. mini: the miniature that the file describes, recorded as the
            study ``NAME-mini``.

    Raises:
        ValueError: a file that is not a study; names what is wrong and where.
    """
    import yaml

    path = study_file(study)
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected a mapping with {', '.join(KEYS)}")
    _refuse_unknown(str(path), given, KEYS)
    name = path.stem
    if mini:
        if not given.get("mini"):
            raise ValueError(f"{path} has no part 'mini' to run in miniature")
        small: dict[str, Any] = given["mini"]
        _refuse_unknown(f"{path}, mini", small, ("recipe", "set", "seeds", "zero_shot"))
        parts = {
            part: {**given.get(part, {}), **small.get(part, {})}
            for part in ("set", "zero_shot")
            if part in given or part in small
        }
        given, name = {**given, **small, **parts}, f"{name}-mini"
    if not isinstance(given.get("runs"), dict) or not given["runs"]:
        raise ValueError(f"{path}: 'runs' must name at least one run")
    return _expand(str(path), name, given)


def _expand(where: str, study: str, given: Mapping[str, Any]) -> list[Planned]:
    kept = _steps_to_keep(where, given)
    plan: list[Planned] = []
    for seed in given.get("seeds", [0]):
        by_label: dict[str, Planned] = {}
        part, first = given.get("zero_shot"), len(plan)
        for label, run in given["runs"].items():
            if seed not in run.get("seeds", [seed]):
                continue
            here = f"{where}, run {label!r}"
            planned, branches = _one(here, study, given, label, seed, by_label, kept)
            for one in (planned, *branches):
                by_label[one.label] = one
                plan.append(one)
        if part:
            task = _zero_shot(f"{where}, zero_shot", study, part, seed, by_label)
            of_this = task.recipe.start_from.startswith(f"{study}/")
            plan.insert(len(plan) if of_this else first, task)
    names = [p.name for p in plan]
    for planned in plan:
        if names.count(planned.name) > 1:
            raise ValueError(f"{where}: two runs have the same recipe as {planned.label!r}")
    return plan


def _steps_to_keep(where: str, given: Mapping[str, Any]) -> dict[str, set[Any]]:
    """Label -> where other runs start from it; checks keys on the way."""
    kept: dict[str, set[Any]] = {}
    for label, run in given["runs"].items():
        if not isinstance(run, dict) or "pe" not in run:
            raise ValueError(f"{where}, run {label!r}: expected a mapping with at least 'pe'")
        _refuse_unknown(f"{where}, run {label!r}", run, RUN_KEYS)
        start = run.get("start")
        if start is not None:
            if not isinstance(start, dict) or set(start) != {"run", "at"}:
                raise ValueError(
                    f"{where}, run {label!r}: 'start' names a run and where it is: "
                    "{run: NAME, at: 10/16}"
                )
            kept.setdefault(start["run"], set()).add(start["at"])
        branches = run.get("branches", [])
        if not isinstance(branches, list):
            raise ValueError(f"{where}, run {label!r}: 'branches' is a list: [1/4, 1/2]")
    return kept


def _one(
    where: str,
    study: str,
    given: Mapping[str, Any],
    label: str,
    seed: int,
    earlier: Mapping[str, Planned],
    kept: Mapping[str, set[Any]],
) -> tuple[Planned, list[Planned]]:
    """A run and its branches."""
    run = given["runs"][label]
    base = named_recipe(given.get("recipe", "auto"), **_plain(given.get("set", {})))
    fields = {**given.get("set", {}), **run.get("set", {})}
    decay = fields.get("decay_steps", base.decay_steps)
    fields["steps"] = steps = _count(where, "steps", fields.get("steps", base.steps), base.steps)
    for field in OWN_SHARES:
        if field in fields:
            fields[field] = _count(where, field, fields[field], steps)
    fields |= {"pe": run["pe"], "pe_options": run.get("pe_options", {}), "seed": seed}
    parent = None
    if "start" in run:
        parent, begins = _start(where, study, run["start"], seed, earlier, base.steps)
        fields |= begins
    if label in kept:
        marks = {_at(where, at, base.steps, steps) for at in kept[label]}
        fields["keep_steps"] = tuple(sorted(m for m in marks if m < steps))
    ends = {
        f"{label}@{share}": _count(where, "branches", share, base.steps)
        for share in run.get("branches", [])
    }
    decays = {name: _count(where, "decay_steps", decay, end) for name, end in ends.items()}
    if ends:
        fields["keep_states"] = tuple(sorted({end - decays[name] for name, end in ends.items()}))
    try:
        recipe = named_recipe(base.name, **fields)
        _check_branches(recipe, ends, decays)
        planned = Planned(label, recipe, study, parent)
        branches = [
            Planned(name, _branch(recipe, end, decays[name]), study, planned.name)
            for name, end in ends.items()
        ]
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return planned, branches


def _zero_shot(
    where: str, study: str, given: Mapping[str, Any], seed: int, here: Mapping[str, Planned]
) -> Planned:
    """The task that extends the last weights of a run, of this study or of another one."""
    name = str(given.get("run"))
    if name not in here and "/" not in name:
        known = ", ".join(here) or "none"
        raise ValueError(f"{where}: expected run: STUDY/RUN or a run of this study ({known}), "
                         f"got {name!r}")  # fmt: skip
    try:
        wanted = ZeroShot.of(given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    begins: dict[str, Any]
    if name in here:
        source = here[name]
        begins = {"start_from": f"{study}/{source.name}", "start_step": source.recipe.steps}
    else:
        _, begins = _start(where, study, {"run": name, "at": "end"}, seed, {}, 0)
        source = next(
            p
            for p in load_plan(name.partition("/")[0], mini=study.endswith("-mini"))
            if begins["start_from"] == f"{p.study}/{p.name}"
        )
    recipe = dataclasses.replace(source.recipe, **begins, keep_steps=(), keep_states=())
    return Planned("zero-shot", recipe, study, zero_shot=wanted)


def _start(
    where: str,
    study: str,
    start: Mapping[str, Any],
    seed: int,
    earlier: Mapping[str, Planned],
    of: int,
) -> tuple[str | None, dict[str, Any]]:
    """The run of this study to wait for, if it is one of this study, and the recipe's fields."""
    name, source = start["run"], earlier.get(start["run"])
    elsewhere, _, label = str(name).partition("/")
    if source is None and label:
        mini = study.endswith("-mini")
        found = {p.label: p for p in load_plan(elsewhere, mini=mini) if p.recipe.seed == seed}
        if label not in found:
            known = ", ".join(found) or "none"
            raise ValueError(f"{where}: starts from {name!r}; runs there with seed {seed}: {known}")
        source, of = found[label], found[label].recipe.steps
    elif source is None:
        known = ", ".join(earlier) or "none"
        raise ValueError(f"{where}: starts from {name!r}; the runs above it are: {known}")
    at = _at(where, start["at"], of, source.recipe.steps)
    if not 0 < at <= source.recipe.steps:
        raise ValueError(f"{where}: starts at step {at}, which {name!r} has not")
    if source.study == study:
        return source.name, {"start_from": source.name, "start_step": at}
    kept = (*source.recipe.keep_steps, *source.recipe.keep_states, source.recipe.steps)
    if at not in kept:
        steps = ", ".join(map(str, kept))
        raise ValueError(f"{where}: starts at step {at} of {name!r}, which keeps {steps}")
    return None, {"start_from": f"{source.study}/{source.name}", "start_step": at}


def _check_branches(recipe: Recipe, ends: Mapping[str, int], decays: Mapping[str, int]) -> None:
    if ends and (recipe.schedule != "wsd" or not recipe.decay_steps):
        raise ValueError("branches need a plateau: set schedule: wsd and decay_steps, say 20%")
    for name, end in ends.items():
        first, last = recipe.warmup_steps, recipe.steps - recipe.decay_steps
        if not first <= end - decays[name] <= last or not 0 < decays[name] < end:
            raise ValueError(
                f"branch {name} of {end} steps would leave after step {end - decays[name]}; the "
                f"plateau lasts from {first} to {last}"
            )


def _branch(recipe: Recipe, end: int, decay: int) -> Recipe:
    """The last ``decay`` steps of a run of ``end`` steps that is like ``recipe`` otherwise."""
    return dataclasses.replace(
        recipe, start_from=recipe.run_name(), start_step=end - decay, start_state="all",
        steps=decay, warmup_steps=0, decay_steps=decay, keep_steps=(), keep_states=(),
    )  # fmt: skip


def _at(where: str, value: Any, of: int, steps: int) -> int:
    return steps if value == "end" else _count(where, "at", value, of)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of all runs that are whole already; shares are worked out for each run."""
    return {k: v for k, v in fields.items() if k not in OWN_SHARES and not _is_share(v)}


def _is_share(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+/\d+|\d+(\.\d+)?%", value) is not None


def _count(where: str, name: str, value: Any, of: int) -> int:
    """Steps: a whole number, a fraction ``6/16`` or a percentage ``3%`` of ``of``."""
    if _is_share(value):
        share = Fraction(value[:-1]) / 100 if value.endswith("%") else Fraction(value)
        return max(1, round(share * of))
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{where}: {name}: expected steps, a fraction or a percentage; got {value!r}")


def _refuse_unknown(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: {unknown('key', str(key), known)}")
