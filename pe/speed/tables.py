"""A speed record as Markdown. Every number is computed here, from the record. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pe.results.quantities import significant
from pe.speed.families import FAMILIES, Family, counterpart, library, title
from pe.speed.record import MISSING, TIME_UP, Speed

COMMAND = "pe speed --minutes 14 --name h100"
ON_CPU = "CPU, small: no speeds to compare with a GPU's."
MODES = {"train": "training", "prefill": "prefill", "small": "one window of 128 tokens"}


def rate(tokens_per_second: float) -> str:
    """``1.76 M``, ``432 k``, ``980``."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if tokens_per_second >= size:
            return significant(tokens_per_second / size) + letter
    return significant(tokens_per_second)


def machine(speed: Speed) -> str:
    """Where, when and with what a record was made; on a CPU, that it is no speed to compare."""
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
    """How many sessions measured at the same time, each on its own card of one machine."""
    sessions = speed.record["sessions"]
    spans = [(str(s["created"]), str(s["finished"] or s["created"])) for s in sessions]
    return max(sum(begun <= at < ended for begun, ended in spans) for at, _ in spans)


def drift(speed: Speed) -> str:
    """How far the rounds of NoPE lie apart, one line per mode and length."""
    lines = []
    for mode in speed.settings["modes"]:
        for length in speed.lengths(mode):
            result = speed.result("nope", mode, length)
            if result.spread is None:
                continue
            least, most = result.spread
            rounds = sum(row["tokens_per_second"] is not None for row in result.rows)
            lines.append(
                f"| {MODES[mode]} | {length:,} | {rounds} | {rate(least)} | "
                f"{rate(result.tokens_per_second or 0.0)} | {rate(most)} |"
            )
    heads = [
        "| | tokens | rounds | least | median | most |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    return "\n".join([*heads, *lines])


def overview(speed: Speed, mode: str = "train") -> str:
    """Systems by lengths: tokens/s, and in brackets the ratio to NoPE; then who is missing."""
    lengths = known_lengths(speed, mode)
    heads = ["encoding", *(f"{n:,} tokens" for n in lengths)]
    lines = [_line(heads), _line([":--", *("--:" for _ in lengths)])]
    for system in shown(speed, mode):
        cells = []
        for length in lengths:
            result = speed.result(system, mode, length)
            if result.tokens_per_second is None:
                cells.append(short(str(result.reason)))
                continue
            ratio = None if system == "nope" else speed.ratio(system, mode, length)
            tail = "" if ratio is None else f" ({ratio:.2f})"
            cells.append(rate(result.tokens_per_second) + tail)
        lines.append(_line([title(system), *cells]))
    absent = [title(s) for s in _all(speed, mode) if s not in shown(speed, mode)]
    note = f"\n\n*Not measured, since time was up: {', '.join(absent)}.*" if absent else ""
    return "\n".join(lines) + note


def details(speed: Speed, mode: str, length: int) -> str:
    """Everything about one mode and length, one row per system."""
    heads = [
        "encoding", "attention", "tokens/s", "of NoPE", "memory, GiB", "MFU", "least", "most",
        "batch", "first step, s",
    ]  # fmt: skip
    lines = [_line(heads), _line([":--", ":--", *("--:" for _ in heads[2:])])]
    for system in shown(speed, mode):
        result = speed.result(system, mode, length)
        if result.reason in (MISSING, TIME_UP):
            continue
        if result.tokens_per_second is None or result.spread is None:
            reason = str(result.reason).replace("|", "\\|")
            lines.append(_line([title(system), reason, *("–" for _ in heads[2:])]))
            continue
        ratio = speed.ratio(system, mode, length)
        usual = result["compiled"] == speed.settings["compiled"]
        lines.append(
            _line(
                [
                    title(system),
                    str(result["path"]) + ("" if usual else ", not compiled"),
                    rate(result.tokens_per_second),
                    _or_dash(ratio, "{:.3f}"),
                    _or_dash(result["peak_memory_gib"], "{:.2f}"),
                    _or_dash(result["mfu"], "{:.1%}"),
                    *(rate(x) for x in result.spread),
                    str(result["batch"]),
                    _or_dash(result["first_step_seconds"], "{:.1f}"),
                ]
            )
        )
    return "\n".join(lines)


def short(reason: str) -> str:
    """Why there is no number, for a narrow cell."""
    if reason in (MISSING, TIME_UP):
        return MISSING
    for word in ("out of memory", "failed"):
        if reason.startswith(word):
            return word
    return "refused"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def of_family(speed: Speed, family: Family) -> str:
    """What a family's members cost in training: path, speed over NoPE's and memory, by length."""
    lengths = known_lengths(speed, "train")
    there = set(shown(speed, "train"))
    members = [m for m in family.members if m in there]
    heads = ["encoding", "attention", *(f"{n:,} tokens" for n in lengths)]
    lines = [_line(heads), _line([":--", ":--", *("--:" for _ in lengths)])]
    for system in members:
        results = [speed.result(system, "train", n) for n in lengths]
        path = next((str(r["path"]) for r in results if r["path"]), "–")
        cells = []
        for length, result in zip(lengths, results, strict=True):
            if result.tokens_per_second is None:
                cells.append(short(str(result.reason)))
                continue
            ratio = speed.ratio(system, "train", length)
            memory = result["peak_memory_gib"]
            text = f"{rate(result.tokens_per_second)}/s"
            if ratio is not None and system != "nope":
                text = f"{ratio:.2f}"
            cells.append(text + ("" if memory is None else f" · {memory:.1f} GiB"))
        lines.append(_line([title(system), path, *cells]))
    absent = [title(m) for m in family.members if m not in speed.settings["systems"]]
    note = f"\n\n*Not asked of this record: {', '.join(absent)}.*" if absent else ""
    return "\n".join(lines) + note if members else ""


def peers(speed: Speed, mode: str = "train") -> str:
    """How many times as fast ours are as other libraries' models with the same method."""
    there = [s for s in shown(speed, mode) if library(s)]
    lengths = [n for n in speed.lengths(mode) if any(_known(speed, s, mode, n) for s in there)]
    lines = [_line(["other library", "ours", *(f"{n:,} tokens" for n in lengths)])]
    lines.append(_line([":--", ":--", *("--:" for _ in lengths)]))
    for peer in there:
        own = counterpart(peer)
        cells = []
        for length in lengths:
            result = speed.result(peer, mode, length)
            ratio = speed.ratio(own, mode, length, to=peer)
            if result.tokens_per_second is None:
                cells.append(short(str(result.reason)))
            elif ratio is None:
                cells.append(f"{rate(result.tokens_per_second)} beside none of ours")
            else:
                batch = speed.settings["tokens"] // length
                note = "" if result["batch"] == batch else f", batch {result['batch']}"
                times = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"
                cells.append(f"{times}× ({rate(result.tokens_per_second)}{note})")
        lines.append(_line([title(peer), title(own), *cells]))
    return "\n".join(lines)


def deterministic(speeds: Sequence[Speed]) -> str:
    """What the same bits twice cost: tokens/s in training over those of the usual algorithms.

    Of the newest record that was made with `pe.devices.deterministic`, beside the newest without,
    of the same sizes on the same kind of machine; empty if there is no such pair.
    """
    newest = sorted(speeds, key=lambda s: str(s.record["sessions"][0]["created"]), reverse=True)
    for same in (s for s in newest if s.settings.get("deterministic")):
        for usual in (s for s in newest if not s.settings.get("deterministic")):
            if _alike(same, usual):
                return _beside(same, usual)
    return ""


def _alike(one: Speed, other: Speed) -> bool:
    keys = ("recipe", "tokens", "compiled")
    return one.hardware["name"] == other.hardware["name"] and all(
        one.settings[key] == other.settings[key] for key in keys
    )


def _beside(same: Speed, usual: Speed) -> str:
    lengths = known_lengths(same, "train")
    lines = [_line(["encoding", *(f"{n:,} tokens" for n in lengths)])]
    lines.append(_line([":--", *("--:" for _ in lengths)]))
    for system in shown(same, "train"):
        cells = []
        for length in lengths:
            rates = [s.result(system, "train", length).tokens_per_second for s in (same, usual)]
            if rates[0] is None:
                cells.append(short(str(same.result(system, "train", length).reason)))
            else:
                ratio = f"{rates[0] / rates[1]:.2f} " if rates[1] else ""
                cells.append(f"{ratio}({rate(rates[0])})")
        lines.append(_line([title(system), *cells]))
    names = [f"`runs/{s.record['study']}/{s.record['run']}`" for s in (same, usual)]
    return "\n".join(lines) + f"\n\n*Records: {names[0]} over {names[1]}.*"


def best(speeds: Sequence[Speed]) -> Speed | None:
    """The record to show: a GPU's before a CPU's, the 34 M model's before others, the newest."""

    def worth(speed: Speed) -> tuple[bool, bool, bool, str]:
        created, chosen = speed.record["sessions"][0]["created"], speed.settings
        usual = not chosen.get("deterministic")
        return speed.on_gpu, usual, chosen["recipe"] == "tiny", created

    begun = [speed for speed in speeds if speed.record["sessions"]]
    return max(begun, key=worth, default=None)


def known_lengths(speed: Speed, mode: str) -> list[int]:
    """Lengths at which anything was tried, not only left out because time was up."""
    return [
        n
        for n in speed.lengths(mode)
        if any(_known(speed, s, mode, n) for s in speed.systems(mode))
    ]


def _known(speed: Speed, system: str, mode: str, length: int) -> bool:
    return speed.result(system, mode, length).reason not in (MISSING, TIME_UP)


def shown(speed: Speed, mode: str) -> list[str]:
    """Systems tried in a mode, not only left out because time was up."""
    lengths = speed.lengths(mode)
    return [s for s in _all(speed, mode) if any(_known(speed, s, mode, n) for n in lengths)]


def _all(speed: Speed, mode: str) -> list[str]:
    """Systems of a mode: ours by family, then the peers."""
    there = list(speed.systems(mode))
    place = [member for family in FAMILIES.values() for member in family.members]
    own = [s for s in there if not library(s)]
    own.sort(key=lambda s: place.index(s) if s in place else len(place))
    return own + [s for s in there if library(s)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
