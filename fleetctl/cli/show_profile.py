"""Profiles in a terminal: a line for each, or one with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.cli.output import hang
from fleetctl.profiles.match import Kept
from fleetctl.profiles.profile import BoxKind, Evidence, ModelKind, Profile
from fleetctl.spec.units import gib


def show_all(known: Sequence[Kept], out: Console) -> None:
    """Print a table: what each is of, when, and how it is known."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("profile", "model", "box", "date", "how", "file"):
        table.add_column(title, no_wrap=title in ("profile", "date"), overflow="fold")
    for one in known:
        profile = one.profile
        how = ", ".join(dict.fromkeys(evidence.how for evidence in profile.evidence))
        file = one.file if one.own else "shipped"
        table.add_row(profile.profile, model_words(profile.model), box_words(profile), profile.date, how, file)
    out.print(table)


def show_one(one: Kept, out: Console) -> None:
    """Print a profile: settings with their evidence, and the curves that were measured."""
    profile = one.profile
    out.print(Text(profile.profile, style="bold").append(f"  {profile.date}, {one.file}", "dim"))
    hang(out, Text(f"model     {model_words(profile.model)}"), 10)
    hang(out, Text(f"box       {box_words(profile)}"), 10)
    if profile.versions:
        hang(out, Text("versions  " + ", ".join(f"{key} {value}" for key, value in profile.versions.items())), 10)
    values = settings(profile)
    for evidence in profile.evidence:
        out.print()
        for key in evidence.about:
            out.print(Text(key, style="bold").append(f"  {values[key]}", "green"))
        hang(out, Text(f"    {evidence.how}: {' '.join(evidence.told.split())}"), 4)
        _curve(evidence, out)


def settings(profile: Profile) -> dict[str, str]:
    """Key → its value, as evidence names keys."""
    given = profile.settings
    found = {f"concurrency.{mix}": f"{number} at once" for mix, number in given.concurrency.items()}
    if given.gpu_memory_utilization is not None:
        found["gpu_memory_utilization"] = f"{given.gpu_memory_utilization:g}"
    if given.kv_cache_dtype is not None:
        found["kv_cache_dtype"] = given.kv_cache_dtype
    if given.speculative is not None:
        found["speculative"] = f"{given.speculative.method}, {given.speculative.num_speculative_tokens} tokens"
    if given.batched_tokens is not None:
        found["batched_tokens"] = str(given.batched_tokens)
    if profile.memory is not None:
        sizes = {"weights": profile.memory.weights, "beyond weights and cache": profile.memory.overhead}
        found["memory"] = ", ".join(f"{key} {gib(size)}" for key, size in sizes.items() if size is not None)
    return found


def _curve(evidence: Evidence, out: Console) -> None:
    for point in sorted(evidence.points, key=lambda point: point.concurrency):
        words = f"    {point.concurrency:>5} at once: {point.tokens_per_second:.1f} tokens/s"
        words += f", first token after {point.first_token:.2f} s" if point.first_token is not None else ""
        out.print(Text(words, style="dim"))


def model_words(model: ModelKind) -> str:
    """Which models a profile is of."""
    words = ["/".join(model.names)] if model.names else []
    words += [f"{key} {value}" for key, value in model.config.items() if not model.names]
    words += [model.quantization] if model.quantization else []
    words += [f"weights of {gib(model.weights)}"] if model.weights is not None and not model.names else []
    return ", ".join(words)


def box_words(profile: Profile) -> str:
    """Which boxes a profile is of."""
    kind: BoxKind = profile.box
    one = f"no GPU, {kind.machine}" if kind.gpu is None else f"{f'{kind.gpus} ' if kind.gpus > 1 else ''}{kind.gpu}"
    return f"{f'{profile.over} boxes: ' if profile.over > 1 else ''}{one}, {gib(kind.memory)}"
