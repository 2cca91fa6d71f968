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
      t5:                               # a sweep: a run for each rate and multiple
        pe: t5
        rates: [1.0e-3, 3.0e-3]
        encoding_rates: [1, 10]
    zero_shot: {run: rope, factors: [2, 4]}  # one more task (`pe.study.zero_shot`)
    mini: {recipe: demo, set: {...}}  # the same study in miniature, for a CPU

``steps``, ``at`` and ``branches`` may be fractions of the study's steps, ``warmup_steps``,
``decay_steps``, ``checkpoint_every`` and each of ``keep_steps`` of the run's own. A run of 0 steps
puts the weights it starts from under its own encoding and is evaluated like the others. A run that
others start from keeps the checkpoints they need. The miniature of a study starts from miniatures
of others.
A branch of b steps shares the first of them with its run and has its own decay, ``decay_steps`` of
b; it is named ``pope@1/4``. ``rates`` may also be given for the whole study; a run of a sweep is
named ``t5@0.003,x10``, and `pe.results.sweeps` finds the best. This module imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError

from pe._errors import explain, unknown
from pe._files import shipped
from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import Recipe
from pe.runs import Folder, Run, root
from pe.study.zero_shot import Distinct, Natural, YamlPart, ZeroShot
from pe.training.start import RETRAINED, check_source, takes_searched_factors

FOLDER = shipped("studies")
OWN_SHARES = ("warmup_steps", "decay_steps", "checkpoint_every", "validate_every")


def _amount(value: Any) -> int | str:
    """Steps: a whole number, a fraction ``6/16``, a percentage ``3%``; `_steps` counts them."""
    if _is_share(value) or (isinstance(value, int) and not isinstance(value, bool)):
        return value  # type: ignore[no-any-return]
    raise ValueError(f"expected steps, a fraction or a percentage; got {value!r}")


Amount = Annotated[int | str, PlainValidator(_amount)]
Where = Annotated[int | str, PlainValidator(lambda v: v if v == "end" else _amount(v))]
Fields = dict[str, Any]
OneOrMore = BeforeValidator(lambda v: [v] if isinstance(v, (int, float, str)) else v)
Seeds = Annotated[list[Natural], Field(min_length=1), Distinct, OneOrMore]
Rates = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1), Distinct, OneOrMore]


class StartEntry(YamlPart):
    """Whose weights a run begins with."""

    run: str
    at: Where


class RunEntry(YamlPart):
    """One run of the file."""

    pe: str
    pe_options: Fields = {}
    start: StartEntry | None = None
    set: Fields = {}
    seeds: Seeds | None = None
    branches: Annotated[list[Amount], Distinct] = []
    rates: Rates | None = None
    encoding_rates: Rates | None = None

    def sweep(self, label: str, rates: Rates | None) -> Iterator[tuple[str, RunEntry]]:
        """The runs of a sweep with their labels; the entry itself where nothing is swept.

        Args:
            rates: those of the whole study.

        Raises:
            ValueError: a rate is given both as a field and as a sweep.
        """
        swept = {"learning_rate": self.rates or rates, "encoding_rate": self.encoding_rates}
        for field, values in swept.items():
            if values and field in self.set:
                raise ValueError(f"{field}: in set and in a sweep; leave one of them out")
        for rate, multiple in itertools.product(*(v or (None,) for v in swept.values())):
            name = f"{label}@{rate:g}" if rate else label
            name += f",x{multiple:g}" if multiple else ""
            chosen = {"learning_rate": rate, "encoding_rate": multiple}
            more = {field: value for field, value in chosen.items() if value is not None}
            yield name, self.model_copy(update={"set": self.set | more})


class MiniEntry(YamlPart):
    """What the miniature has in place of the study's own; ``set`` and ``zero_shot`` are merged."""

    recipe: str | None = None
    set: Fields = {}
    seeds: Seeds | None = None
    zero_shot: Fields = {}


class StudyFile(YamlPart):
    """The whole file."""

    title: str = ""
    recipe: str = "auto"
    set: Fields = {}
    seeds: Seeds = [0]
    rates: Rates | None = None
    runs: Annotated[dict[str, RunEntry], Field(min_length=1)]
    zero_shot: ZeroShot | None = None
    mini: MiniEntry | None = None

    def miniature(self) -> StudyFile:
        """The miniature, as a separate study."""
        if self.mini is None:
            raise ValueError("mini: missing; the file describes no miniature")
        values, small = (
            self.model_dump(exclude_unset=True),
            self.mini.model_dump(exclude_unset=True),
        )
        parts = {
            part: values.get(part, {}) | small.get(part, {})
            for part in ("set", "zero_shot")
            if part in values or part in small
        }
        return StudyFile.model_validate(values | small | parts | {"mini": None})


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run of a study."""

    label: str
    """Its name in the YAML."""
    recipe: Recipe
    study: str
    parent: str | None = None
    """Name of the run that has to be done before it: of this study, or one to retrain."""
    retrained: bool = False
    """A complete run that is retrained for its lost weights (`pe.study.parents`)."""
    zero_shot: ZeroShot | None = None
    """Nothing to train: what the recipe starts from is measured, extended by other encodings."""

    @functools.cached_property
    def name(self) -> str:
        """Its folder in that of the study: encoding, seed, hash."""
        if self.zero_shot:
            return f"extension of {self.recipe.start_from}"
        name = self.recipe.run_name()
        return f"{RETRAINED}/{name}" if self.retrained else name

    def run(self) -> Run:
        """The run's folder and record, with this recipe; of a zero-shot task, those it extends."""
        if self.zero_shot:
            return Run(root() / self.recipe.start_from)
        return Run(root() / self.study / self.name, recipe=self.recipe)

    def done(self) -> bool:
        """Trained and evaluated as its recipe asks; of one retrained, the weights are there."""
        from pe.study.complete import complete

        if self.zero_shot:
            return not self.zero_shot.missing(self.run())
        return complete(self.run())

    def past_its_start(self) -> bool:
        """Whether the weights that it starts from are no longer needed."""
        if self.zero_shot:
            return self.done()
        return self.run().exists() and self.run().record.status == "complete"


class StudyFolder(Folder):
    """A study as the notebook command sees it: a folder to hold, and to put the page into.

    It has no record: what came of the study is in the records of its runs.
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
        """How many share the work: as asked for, or one per GPU; 1 where that is not known."""
        from pe.study.devices import workers_here

        return workers_here(self._workers)


def study_file(study: str) -> Path:
    """The YAML of a study by path, or by name: in ./studies, or one that comes with the package.

    Raises:
        ValueError: there is none.
    """
    path = Path(study)
    if path.suffix in (".yaml", ".yml"):
        if not path.exists():
            raise ValueError(f"study file {study!r} does not exist")
        return path
    known = {p.stem: p for folder in (FOLDER, Path("studies")) for p in folder.glob("*.yaml")}
    if study not in known:
        raise unknown("study", study, sorted(known))
    return known[study]


def load_plan(study: str, *, mini: bool = False, check: bool = False) -> list[Planned]:
    """The runs of a study in the order of the file, parents before the runs that start from them.

    Args:
        study: a name or a path. mini: the miniature that the file describes, recorded as the
            study ``NAME-mini``. check: also encodings, their options, corpora and tokenizers
            (`check_run`), which imports torch.

    Raises:
        ValueError: a file that is not a study; one line per mistake, with its place in the file.
    """
    import yaml

    path = study_file(study)
    try:
        file = StudyFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        file = file.miniature() if mini else file
        return [
            planned
            for seed in file.seeds
            for planned in _Seed(f"{path.stem}-mini" if mini else path.stem, file, seed).plan(check)
        ]
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {line}" for line in explain(error, "key"))) from None
    except ValueError as error:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(error).split("\n"))) from error


def load_plans(studies: Sequence[str], *, mini: bool = False, check: bool = False) -> list[Planned]:
    """The runs of studies one after the other, each run once, where it is named first.

    Args:
        studies: as `load_plan` takes them. ``NAME:0,1`` are the runs of seeds 0 and 1 only.

    Raises:
        ValueError: an unknown study, or seeds that it does not have.
    """
    plans: dict[tuple[str, str], Planned] = {}
    for study in studies:
        name, _, seeds = study.rpartition(":")
        chosen = re.fullmatch(r"\d+(,\d+)*", seeds) if name else None
        plan = load_plan(name if chosen else study, mini=mini, check=check)
        if chosen:
            wanted = {int(seed) for seed in seeds.split(",")}
            known = sorted({planned.recipe.seed for planned in plan})
            if not wanted <= set(known):
                raise ValueError(f"{study}: the seeds of {name} are {', '.join(map(str, known))}")
            plan = [planned for planned in plan if planned.recipe.seed in wanted]
        for planned in plan:
            plans.setdefault((planned.study, planned.name), planned)
    return list(plans.values())


def check_run(run: Run) -> None:
    """Refuse what training would refuse only later. A record is shown also without its corpus.

    Raises:
        ValueError: the encoding, its options, the corpus or the tokenizer.
        RunError: the run is recorded, and its encoding has another source now.
    """
    from pe.data.corpora import open_corpus
    from pe.data.tokenizer import plan_tokenizer
    from pe.encodings import check
    from pe.encodings.core.spec import layer_specs

    recipe = run.recipe
    layer_specs(recipe.pe, recipe.num_hidden_layers)
    later = ["long_factor"] if takes_searched_factors(recipe) else []
    check(
        recipe.pe,
        {name: value for name, value in recipe.pe_options.items() if name not in later},
        original_length=recipe.context_length,
        head_dim=recipe.head_dim,
        num_heads=recipe.num_attention_heads,
        num_kv_heads=recipe.num_key_value_heads,
        hidden_size=recipe.hidden_size,
    )
    if run.exists():
        check_source(run)
        return
    open_corpus(recipe.corpus, recipe.separator)
    if recipe.tokenizer == "bpe":
        plan_tokenizer(recipe.tokenizer, recipe.vocab_size)


class _Seed:
    """The runs of one seed, one after the other."""

    def __init__(self, study: str, file: StudyFile, seed: int) -> None:
        self.study, self.file, self.seed = study, file, seed
        self.base = named_recipe(file.recipe, **_plain(file.set))
        self.mini = study.endswith("-mini")
        self.planned: dict[str, Planned] = {}
        self.kept: dict[str, list[int | str]] = {}
        """Label -> where other runs start from it."""
        self.elsewhere: dict[str, list[Planned]] = {}
        """The plans of other studies that runs of this one start from."""
        for entry in file.runs.values():
            if entry.start:
                self.kept.setdefault(entry.start.run, []).append(entry.start.at)

    def plan(self, check: bool) -> list[Planned]:
        """All of them, and the zero-shot task after the run that it extends."""
        mistakes: list[str] = []
        broken: set[str] = set()
        for label, entry in self._entries(mistakes):
            if entry.seeds is not None and self.seed not in entry.seeds:
                continue
            if entry.start and entry.start.run in broken:
                broken.add(label)  # its own mistakes show once those of its parent are gone
                continue
            try:
                for one in self._run(label, entry):
                    self.planned[one.label] = one
                    if check:
                        check_run(one.run())
            except ValueError as error:
                if label not in self.planned:
                    broken.add(label)
                mistakes.append(f"runs.{label}: {error}")
        plan = list(self.planned.values())
        names = [p.name for p in plan]
        mistakes += [
            f"runs.{p.label}: two runs have the same recipe; it is {p.name}"
            for p in plan
            if names.index(p.name) != plan.index(p)
        ]
        if self.file.zero_shot and self.file.zero_shot.run not in broken:
            try:
                task = self._zero_shot(self.file.zero_shot)
                of_this = task.recipe.start_from.startswith(f"{self.study}/")
                waiting = [p for p in plan if takes_searched_factors(p.recipe)]
                ready = [p for p in plan if p not in waiting]
                waiting = [dataclasses.replace(p, parent=task.name) for p in waiting]
                plan = [*ready, task, *waiting] if of_this else [task, *ready, *waiting]
            except ValueError as error:
                mistakes.append(f"zero_shot: {error}")
        mistakes += [
            f"runs.{p.label}: long_factor: searched for by no zero_shot part of this study; "
            "expected one of the run that this one starts from, with longrope and its factor"
            for p in plan
            if takes_searched_factors(p.recipe) and not self._searched(p.recipe, plan)
        ]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return plan

    def _searched(self, recipe: Recipe, plan: Sequence[Planned]) -> bool:
        """Whether a task of the plan finds the factors that a run asks for."""
        start = (
            recipe.start_from if "/" in recipe.start_from else f"{self.study}/{recipe.start_from}"
        )
        return any(
            task.zero_shot
            and task.recipe.start_from == start
            and recipe.pe_options.get("factor") in task.zero_shot.searched(task.recipe)
            for task in plan
        )

    def _entries(self, mistakes: list[str]) -> Iterator[tuple[str, RunEntry]]:
        """The runs of the file, one for each rate of a sweep."""
        for label, entry in self.file.runs.items():
            try:
                yield from entry.sweep(label, self.file.rates)
            except ValueError as error:
                mistakes.append(f"runs.{label}: {error}")

    def _run(self, label: str, entry: RunEntry) -> list[Planned]:
        """A run and its branches."""
        base, parent = self.base, None
        fields = {**self.file.set, **entry.set}
        decay = fields.get("decay_steps", base.decay_steps)
        fields["steps"] = steps = _steps("steps", fields.get("steps", base.steps), base.steps)
        for name in OWN_SHARES:
            if name in fields:
                fields[name] = _steps(name, fields[name], steps)
        fields["keep_steps"] = tuple(
            _steps("keep_steps", at, steps) for at in fields.get("keep_steps", base.keep_steps)
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
            marks |= set(fields["keep_steps"])
            fields["keep_steps"] = tuple(sorted(m for m in marks if m < steps))
        if entry.branches and (fields.get("schedule", base.schedule) != "wsd" or not decay):
            raise ValueError("branches need a plateau: set schedule: wsd and decay_steps, say 20%")
        ends = {
            f"{label}@{share}": _steps("branches", share, base.steps) for share in entry.branches
        }
        decays = {name: _steps("decay_steps", decay, end) for name, end in ends.items()}
        if ends:
            fields["keep_states"] = tuple(
                sorted({end - decays[name] for name, end in ends.items()})
            )
        run = Planned(label, named_recipe(base.name, **fields), self.study, parent)
        branches = [
            Planned(name, _branch(run.recipe, name, end, decays[name]), self.study, run.name)
            for name, end in ends.items()
        ]
        return [run, *branches]

    def _start(self, start: StartEntry) -> tuple[str | None, dict[str, Any]]:
        """The run of this study to wait for, if it is one of it, and the recipe's fields."""
        source = self._source(start.run)
        ours = source.study == self.study
        of = self.base.steps if ours else source.recipe.steps
        at = _at(start.at, of, source.recipe.steps)
        if not 0 < at <= source.recipe.steps:
            raise ValueError(f"starts at step {at}, which {start.run!r} has not")
        if ours:
            return source.name, {"start_from": source.name, "start_step": at}
        kept = (*source.recipe.keep_steps, *source.recipe.keep_states, source.recipe.steps)
        if at not in kept:
            steps = ", ".join(map(str, kept))
            raise ValueError(f"starts at step {at} of {start.run!r}, which keeps {steps}")
        return None, {"start_from": f"{source.study}/{source.name}", "start_step": at}

    def _source(self, name: str) -> Planned:
        """A run of this study by its label, or of another one with this seed by STUDY/LABEL."""
        if name in self.planned:
            return self.planned[name]
        if "/" not in name:
            known = ", ".join(self.planned) or "none"
            raise ValueError(f"starts from {name!r}; expected STUDY/RUN or one of: {known}")
        study, _, label = name.partition("/")
        if study not in self.elsewhere:
            self.elsewhere[study] = load_plan(study, mini=self.mini)
        there = {p.label: p for p in self.elsewhere[study] if p.recipe.seed == self.seed}
        if label not in there:
            known = ", ".join(there) or "none"
            raise ValueError(f"starts from {name!r}; runs there with seed {self.seed}: {known}")
        return there[label]

    def _zero_shot(self, wanted: ZeroShot) -> Planned:
        """The task that extends the last weights of a run, of this study or of another one."""
        source = self._source(wanted.run)
        recipe = dataclasses.replace(
            source.recipe, start_from=f"{source.study}/{source.name}",
            start_step=source.recipe.steps, keep_steps=(), keep_states=(),
        )  # fmt: skip
        return Planned("zero-shot", recipe, self.study, zero_shot=wanted)


def _branch(recipe: Recipe, name: str, end: int, decay: int) -> Recipe:
    """The last ``decay`` steps of a run of ``end`` steps that is like ``recipe`` otherwise."""
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
    return steps if value == "end" else _steps("at", value, of)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of all runs that are whole already; shares are worked out for each run."""
    return {k: v for k, v in fields.items() if k not in OWN_SHARES and not _is_share(v)}


def _is_share(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+/\d+|\d+(\.\d+)?%", value) is not None


def _steps(name: str, value: Any, of: int) -> int:
    """``value`` in steps, shares being those of ``of``. ValueError names the field."""
    if isinstance(value, str) and _is_share(value):
        share = Fraction(value[:-1]) / 100 if value.endswith("%") else Fraction(value)
        return max(1, round(share * of)) if of else 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name}: expected steps, a fraction or a percentage; got {value!r}")
