"""A speed record as Markdown. Every number is computed here, from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pe.results.markdown import pipe
from pe.results.quantities import significant
from pe.speed.names import counterpart, library, spelled, title
from pe.speed.record import MISSING, TIME_UP, Result, Speed

COMMAND = "pe speed --minutes 14 --name h100"
ON_CPU = "CPU, small: no speeds to compare with a GPU's."
MODES = {"train": "training", "prefill": "prefill", "small": "one window of 128 tokens"}


def rate(tokens_per_second: float) -> str:
    """Write ``1.76 M``, ``432 k``, ``980``."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if tokens_per_second >= size:
            return significant(tokens_per_second / size) + letter
    return significant(tokens_per_second)


def machine(speed: Speed) -> str:
    """Describe the machine, the settings and the code of a record; warn if it is of a CPU."""
    first, hardware = speed.record["sessions"][0], speed.hardware
    chosen, versions = speed.settings, first["versions"]
    code = first["code"]
    commits = list(
        dict.fromkeys((s["code"]["commit"] or "unknown")[:12] for s in speed.record["sessions"])
    )
    sizes = speed.result("nope", "train", min(chosen["lengths"]))["parameters"]
    model = f"recipe `{chosen['recipe']}`" + (f", {sizes / 1e6:.1f} M parameters" if sizes else "")
    how = "bfloat16 autocast" if speed.on_gpu else "float32"
    how += ", compiled" if chosen["compiled"] else ", not compiled"
    how += ", deterministic algorithms" if chosen.get("deterministic") else ""
    helpers = max(session["helpers"] for session in speed.record["sessions"])
    beside = f", first steps with {helpers} processes compiling side by side" if helpers else ""
    cards = _side_by_side(speed)
    beside += f"; parts side by side on {cards} cards of one machine" if cards > 1 else ""
    commands = list(dict.fromkeys(s["command"] for s in speed.record["sessions"] if s["command"]))
    begun = [c for c in commands if "--resume" not in c and "--compile-only" not in c] or commands
    asked = "commands" if len(begun) > 1 else "command"
    text = (
        f"{hardware['name']}, {first['created'][:10]}, torch {versions['torch']}; {model}, "
        f"{chosen['tokens']:,} tokens per step, {how}; medians of {chosen['repeats']} repeats"
        f"{beside}. Commit {', '.join(f'`{c}`' for c in commits)}"
        f"{' (changed)' if code['dirty'] else ''}, record `runs/{speed.record['study']}/"
        f"{speed.record['run']}/speed.json`, {asked} {', '.join(f'`{c}`' for c in begun)}."
    )
    if speed.record["status"] != "complete":
        text += " Not everything was measured: what is missing says so."
    return text if speed.on_gpu else f"**{ON_CPU}** {text}"


def _side_by_side(speed: Speed) -> int:
    """Count the sessions that measured at the same time, each on its own card of one machine."""
    sessions = speed.record["sessions"]
    spans = [(str(s["created"]), str(s["finished"] or s["created"])) for s in sessions]
    return max(sum(begun <= at < ended for begun, ended in spans) for at, _ in spans)


def drift(speed: Speed) -> str:
    """Write a table of the spread of NoPE's rounds by mode and length; "" if there are none."""
    lines = []
    for mode in speed.settings["modes"]:
        for length in speed.lengths(mode):
            result = speed.result("nope", mode, length)
            if result.spread is None:
                continue
            least, most = result.spread
            rounds = sum(row["tokens_per_second"] is not None for row in result.rows)
            median = result.tokens_per_second or 0.0
            lines.append(
                [MODES[mode], f"{length:,}", str(rounds), *map(rate, (least, median, most))]
            )
    return pipe(["", "tokens", "rounds", "least", "median", "most"], lines) if lines else ""


def _by_length(
    speed: Speed,
    mode: str,
    heads: Sequence[str],
    lines: Mapping[str, Sequence[str]],
    cell: Callable[[str, int, Result], str],
) -> str:
    """Write a row per system: its first cells, and a text per length; "" without systems.

    Args:
        lines: by system, the cells below ``heads``. cell: the text of a result that was measured.
    """
    lengths = known_lengths(speed, mode, lines)

    def text(system: str, length: int) -> str:
        result = speed.result(system, mode, length)
        return short(result.reason) if result.reason else cell(system, length, result)

    body = [[*first, *(text(system, n) for n in lengths)] for system, first in lines.items()]
    return pipe([*heads, *(f"{n:,} tokens" for n in lengths)], body, len(heads)) if lines else ""


def _titles(systems: Sequence[str]) -> dict[str, list[str]]:
    return {system: [title(system)] for system in systems}


def overview(speed: Speed, mode: str = "train") -> str:
    """Write tokens/s and the ratio to NoPE, systems by lengths; then which are missing."""

    def cell(system: str, length: int, result: Result) -> str:
        ratio = None if system == "nope" else speed.ratio(system, mode, length)
        return _rate(result) + ("" if ratio is None else f" ({ratio:.2f})")

    table = _by_length(speed, mode, ["encoding"], _titles(shown(speed, mode)), cell)
    absent = [title(s) for s in _all(speed, mode) if s not in shown(speed, mode)]
    note = f"\n\n*Not measured, since time was up: {', '.join(absent)}.*" if absent else ""
    return table + note


def details(speed: Speed, mode: str, length: int) -> str:
    """Write a table of everything about one mode and length, with one row per system."""
    heads = [
        "encoding", "attention", "tokens/s", "of NoPE", "memory, GiB", "MFU", "least", "most",
        "batch", "first step, s",
    ]  # fmt: skip
    lines = []
    for system in shown(speed, mode):
        result = speed.result(system, mode, length)
        if result.reason in (MISSING, TIME_UP):
            continue
        if result.spread is None:
            lines.append([title(system), str(result.reason), *("–" for _ in heads[2:])])
            continue
        usual = result["compiled"] == speed.settings["compiled"]
        lines.append(
            [
                title(system),
                str(result["path"]) + ("" if usual else ", not compiled"),
                _rate(result),
                _or_dash(speed.ratio(system, mode, length), "{:.3f}"),
                _or_dash(result["peak_memory_gib"], "{:.2f}"),
                _or_dash(result["mfu"], "{:.1%}"),
                *(rate(x) for x in result.spread),
                str(result["batch"]),
                _or_dash(result["first_step_seconds"], "{:.1f}"),
            ]
        )
    return pipe(heads, lines, 2) if lines else ""


def short(reason: str) -> str:
    """Return the reason why there is no number, short enough for a narrow cell."""
    if reason in (MISSING, TIME_UP):
        return MISSING
    return next(
        (word for word in ("out of memory", "failed") if reason.startswith(word)), "refused"
    )


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _rate(result: Result) -> str:
    return rate(result.tokens_per_second or 0.0)


def costs(speed: Speed, asked: Sequence[str]) -> str:
    """Write a table of training's cost by length: path, speed over that of NoPE, memory.

    The lines are in the order of ``asked``.
    """

    def path(system: str) -> str:
        results = (speed.result(system, "train", n) for n in speed.lengths("train"))
        return next((str(r["path"]) for r in results if r["path"]), "–")

    def cell(system: str, length: int, result: Result) -> str:
        ratio = None if system == "nope" else speed.ratio(system, "train", length)
        memory = result["peak_memory_gib"]
        text = f"{_rate(result)}/s" if ratio is None else f"{ratio:.2f}"
        return text + ("" if memory is None else f" · {memory:.1f} GiB")

    there = set(shown(speed, "train"))
    lines = {s: [title(s), path(s)] for s in asked if s in there}
    table = _by_length(speed, "train", ["encoding", "attention"], lines, cell)
    absent = [title(m) for m in asked if m not in speed.settings["systems"]]
    note = f"\n\n*Not asked of this record: {', '.join(absent)}.*" if absent else ""
    return table + note if table else ""


def peers(speed: Speed, mode: str = "train") -> str:
    """Write a table of our models' speed over that of other libraries' with the same method."""

    def cell(peer: str, length: int, result: Result) -> str:
        ratio = speed.ratio(counterpart(peer), mode, length, to=peer)
        if ratio is None:
            return f"{_rate(result)} beside none of ours"
        batch = speed.settings["tokens"] // length
        note = "" if result["batch"] == batch else f", batch {result['batch']}"
        times = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"
        return f"{times}× ({_rate(result)}{note})"

    there = [s for s in shown(speed, mode) if library(s)]
    lines = {peer: [title(peer), title(counterpart(peer))] for peer in there}
    return _by_length(speed, mode, ["other library", "ours"], lines, cell)


def deterministic(speeds: Sequence[Speed]) -> str:
    """Write a table of training speeds with deterministic algorithms, relative to the usual ones.

    It compares the `best` record made with `pe.devices.deterministic` with the best one without, of
    the same sizes on the same kind of machine. It is empty if there is no such pair.
    """
    same = best([s for s in speeds if s.settings.get("deterministic")])
    usual = best(
        [s for s in speeds if same and not s.settings.get("deterministic") and _alike(s, same)]
    )
    if same is None or usual is None:
        return ""

    def cell(system: str, length: int, result: Result) -> str:
        other = usual.result(system, "train", length).tokens_per_second
        ratio = f"{(result.tokens_per_second or 0.0) / other:.2f} " if other else ""
        return f"{ratio}({_rate(result)})"

    table = _by_length(same, "train", ["encoding"], _titles(shown(same, "train")), cell)
    names = [f"`runs/{s.record['study']}/{s.record['run']}`" for s in (same, usual)]
    return f"{table}\n\n*Records: {names[0]} over {names[1]}.*"


def _alike(one: Speed, other: Speed) -> bool:
    keys = ("recipe", "tokens", "compiled")
    return one.hardware["name"] == other.hardware["name"] and all(
        one.settings[key] == other.settings[key] for key in keys
    )


def best(speeds: Sequence[Speed]) -> Speed | None:
    """Return the record to show: a GPU's before a CPU's, the 34 M model's, the newest.

    One of a few encodings does not replace one of more than twice as many.
    """
    begun = [speed for speed in speeds if speed.record["sessions"]]
    most = max((len(list(speed.systems())) for speed in begun), default=0)

    def worth(speed: Speed) -> tuple[bool, bool, bool, bool, str]:
        created, chosen = speed.record["sessions"][0]["created"], speed.settings
        usual, many = not chosen.get("deterministic"), 2 * len(list(speed.systems())) >= most
        return speed.on_gpu, usual, chosen["recipe"] == "tiny", many, created

    return max(begun, key=worth, default=None)


def known_lengths(speed: Speed, mode: str, systems: Iterable[str] | None = None) -> list[int]:
    """Return the lengths that were tried, and not only left out because time was up."""
    names = list(speed.systems(mode) if systems is None else systems)
    return [n for n in speed.lengths(mode) if any(_known(speed, s, mode, n) for s in names)]


def _known(speed: Speed, system: str, mode: str, length: int) -> bool:
    return speed.result(system, mode, length).reason not in (MISSING, TIME_UP)


def shown(speed: Speed, mode: str) -> list[str]:
    """Return the systems that were tried in a mode, and not left out because time was up."""
    lengths = speed.lengths(mode)
    return [s for s in _all(speed, mode) if any(_known(speed, s, mode, n) for n in lengths)]


def _all(speed: Speed, mode: str) -> list[str]:
    """Return the systems of a mode: ours by family, then the peers."""
    from pe.encodings import in_order

    there = list(speed.systems(mode))
    own = [s for s in there if not library(s)]
    order = in_order(spelled(s)[0] for s in own)
    own.sort(key=lambda s: order.index(spelled(s)[0]))
    return own + [s for s in there if library(s)]
