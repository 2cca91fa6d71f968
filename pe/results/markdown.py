"""Results as Markdown: pipe tables of rows and of their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tabulate import tabulate

from pe.results import quantities
from pe.results.difference import LEVEL, Difference, difference, p_value, same_targets
from pe.results.intervals import holm
from pe.results.measure import beside_cutting, cut, cut_base, measure, write
from pe.results.quantities import COLUMNS, GUESSING, RunLike, expand
from pe.results.rows import Row, ceilings, common_seeds, comparable

CROPPED = "cut to the training length"
IN_TWO_LINES = GUESSING.replace("than ", "than<br>")
"""These words in a narrow column."""


def pipe(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """Write a pipe table: ``left`` columns, which name a line, to the left, others right."""
    align = ["left" if i < left else "right" for i in range(len(heads))]
    body = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return str(tabulate(body, list(heads), tablefmt="pipe", disable_numparse=True, colalign=align))


def linked(text: str, address: str | None) -> str:
    """Write a link, or only the text if there is no address."""
    return f"[{text}]({address})" if address else text


def table(
    rows: Sequence[Row],
    columns: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
    *,
    base: Row | None = None,
    each: bool = False,
    tokens: bool = False,
    verdicts: bool = False,
) -> str:
    """Write a table with a line per row, compared on the seeds that all rows have.

    Rows with more seeds follow below with their means, in italics. Lengths beyond that of training
    come with two baselines. One is a model that reads only the last training length of a text
    (`pe.results.measure.cut`): a line of perplexities, and a second number in cells of shares. The
    other is the `ceilings`, at the same number of tokens.

    Args:
        columns: quantities. ``ppl`` or a task stands for all its lengths. Default: perplexities,
            and those of `pe.results.quantities.COLUMNS` that any run has recorded.
        links: by a run's name, the address of its page.
        base: show the differences to this row instead of values. They are over the common seeds if
            there are several, else over the same prompts (with the p of McNemar's test) or windows,
            and then they are about these runs alone. A difference is bold if it holds after Holm's
            correction over the whole table, without the means in italics.
        each: write a line per seed.
        tokens: give lengths in tokens, not in multiples of the training length.
        verdicts: say below a value beyond the training length whether it is better or worse than
            the same model with the text cut (`pe.results.measure.beside_cutting`).
    """
    longer = [row.label for row in ceilings(rows)]
    runs = [run for row in rows if row.label not in longer for run in row.runs]
    length = quantities.trained_length(runs)
    names = expand(columns or ("ppl", *_recorded(runs)), runs)
    heads = ["run", "seeds", *quantities.titles(names, length if tokens else None)]
    first = next((name for name in names if name.startswith("ppl@")), None)
    if first and not columns:
        heads[2 + names.index(first)] = f"perplexity at {quantities.title(first)}"
    links = links or {}
    if base is not None:
        return pipe(heads, _against(rows, base, names, links), 2)
    shown = [one for row in rows for one in row.each()] if each else comparable(rows)
    own = [row for row in shown if row.label not in longer]

    def line(row: Row) -> list[str]:
        """Write a row. A column has the same number of tokens for all training lengths."""
        there = [quantities.rescaled(name, row.runs[0], length) for name in names]
        return [*name_cells(row, links), *(_cell(row, name, verdicts) for name in there)]

    lines = [line(row) for row in own]
    baseline = cropped(own, names)
    if baseline:
        lines.append(baseline)
    lines += [line(row) for row in shown if row.label in longer]
    if not each:
        lines += [_of_more(row, line(row)) for row in _with_more_seeds(rows, shown)]
    return pipe(heads, lines, 2)


def _with_more_seeds(rows: Sequence[Row], shown: Sequence[Row]) -> list[Row]:
    """Return the rows that have more seeds than are shown of them on the seeds of all rows."""
    if len(rows) != len(shown):  # no seed is common to all rows, so each seed has a line
        return []
    return [row for row, one in zip(rows, shown, strict=True) if len(row.runs) > len(one.runs)]


def _of_more(row: Row, line: Sequence[str]) -> list[str]:
    """Say in the line of a row with more seeds than others that it is a mean."""
    title, *cells = line
    return [f"*{title}, mean of {len(row.runs)} seeds*", *cells]


def _recorded(runs: Sequence[RunLike]) -> list[str]:
    return [
        name for name in COLUMNS if any(quantities.value(run, name)[0] is not None for run in runs)
    ]


def _cell(row: Row, name: str, verdicts: bool) -> str:
    """Write a value, and below it how the same row does with texts cut to its training length.

    That is a word, or else, of a share of prompts, the other share.
    """
    text, where = write(measure(row, name), name, "<br>"), quantities.at(name)
    if verdicts and text == GUESSING:  # a verdict adds nothing
        return IN_TWO_LINES
    if verdicts:
        word = beside_cutting(row, name, "<br>")
        return f"{text}<br>{word}" if word else text
    if where is None or not where.is_share or where.multiple <= 1 or text == "–":
        return text
    share = cut(row, name)
    return text if share is None else f"{text}<br>cut: {quantities.share(share)}"


def name_cells(row: Row, links: Mapping[str, str]) -> list[str]:
    """Write the row's title and its seeds. Each seed links to the run's page if there is one."""
    pairs = zip(row.seeds, row.runs, strict=True)
    return [row.title, ", ".join(linked(str(seed), links.get(run.name)) for seed, run in pairs)]


def cropped(rows: Sequence[Row], names: Sequence[str]) -> list[str] | None:
    """Return a line with the values of the base row if it reads only the last training length.

    The base row is `pe.results.measure.cut_base`, and its values are those of `cut`. None if no
    column is a perplexity beyond the training length.
    """
    row = cut_base(rows)
    if row is None:
        return None
    left = {name: cut(row, name) for name in names}
    if sum(value is not None and name.startswith("ppl@") for name, value in left.items()) < 2:
        return None
    title, seeds = name_cells(row, {})
    near = write(measure(row, "ppl@1x"), "ppl@1x", "<br>")
    cells = [
        "–" if value is None
        else near if name.startswith("ppl@")
        else quantities.write(value, name, None)
        for name, value in left.items()
    ]  # fmt: skip
    return [f"{title}, {CROPPED}", seeds, *cells]


def _against(
    rows: Sequence[Row], base: Row, names: Sequence[str], links: Mapping[str, str]
) -> list[list[str]]:
    """Write lines of differences to ``base`` on the seeds that all rows have.

    Rows that share more seeds with it follow, with differences of these seeds.
    """
    others = [row for row in rows if row.label != base.label]
    first, *shown = comparable([base, *others])
    if len(shown) != len(others):  # no seed is common to all
        return _gaps(others, base, names, links)
    paired = [row.of(common_seeds([row, base])) for row in others]
    more = _with_more_seeds(paired, shown)
    return [
        *_gaps(shown, first, names, links),
        *map(_of_more, more, _gaps(more, base, names, links)),
    ]


def _gaps(
    others: Sequence[Row], base: Row, names: Sequence[str], links: Mapping[str, str]
) -> list[list[str]]:
    """Write a line per row with its differences to ``base`` on the seeds that both have.

    They are corrected together.
    """
    length = quantities.trained_length(run for row in [base, *others] for run in row.runs)

    def known(row: Row, name: str) -> bool:
        at = quantities.at(name)
        if at and at.is_perplexity and not same_targets([row, base]):
            return False
        return measure(row, quantities.rescaled(name, row.runs[0], length)).value is not None

    def of_pair(row: Row, name: str) -> str:
        """Name the same tokens as `difference` counts them: in the shorter training length."""
        shorter = min((row, base), key=lambda one: quantities.trained_length(one.runs))
        return quantities.rescaled(name, shorter.runs[0], length)

    gaps = {
        (row.label, name): difference(row, base, of_pair(row, name))
        for row in others
        for name in names
        if known(row, name) and known(base, name)
    }
    over = {gap.over for gap in gaps.values()}
    kind = next((kind for kind in ("seeds", "prompts", "windows") if kind in over), "")
    tested = {key: gap.p for key, gap in gaps.items() if gap.over == kind and gap.p is not None}
    adjusted = holm(list(tested.values()))
    bold = {key for key, p in zip(tested, adjusted, strict=True) if p < LEVEL}
    lines = []
    for row in others:
        line = name_cells(row.of(common_seeds([row, base])), links)
        for name in names:
            gap = gaps.get((row.label, name))
            if gap and gap.over != kind:  # an interval over windows does not apply to other seeds
                gap = replace(gap, interval=None)
            line.append(gap_text(gap, (row.label, name) in bold) if gap else "–")
        lines.append(line)
    return lines


def gap_text(gap: Difference, bold: bool = False) -> str:
    """Write ``−4.1%<br>−9.8 to +2.0``, in bold if asked."""
    if gap.guessing:
        return GUESSING
    line = gap.text(gap.value) + gap.unit
    if gap.interval is not None and gap.over == "prompts":
        line += f"<br>{p_value(gap.p)}"
    elif gap.interval is not None:
        line += f"<br>{gap.text(gap.interval.low)} to {gap.text(gap.interval.high)}"
    return f"**{line}**" if bold else line
