#!/usr/bin/env python3
"""How far fleetctl's capacity is from what engines reported: every row of ``data/capacity/kv-truth.csv``.

Run it from a checkout: ``python3 bench/capacity.py``. It takes a second; nothing is started and nothing fetched. The
rows are public logs of vLLM, and two seen in the lab. The files beside them say what each model's config.json has, as
far as the cache is concerned, and where each number comes from.

Few logs say everything, so each row has its own question, and the table says what was put in:

- ``log``: the memory for the cache is the log's own (rounded to 0.01 GiB there); the tokens are compared.
- ``read``: the same, but a setting that the row lacks, or has otherwise, is inferred from the log's own figures.
- ``terms``: only the share and the weights are the log's; the overhead is the documented model's. An estimate.
- ``row X``: the memory for the cache follows from another row of the same box and build. An estimate.
- ``blocks``: the log's number of blocks is put in; what a request holds, and so the tokens, are compared.
- ``bounds``: caches that fleetctl does not know; the truth must lie between its bounds. No error is counted.

The table goes to standard error; the last line of standard output is JSON. Exit status 0: all was compared.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _common import BenchError, Figure, at_most, print_figures, say

from fleetctl.capacity.attention import CPU, CUDA, Launch
from fleetctl.capacity.config import read_shape
from fleetctl.capacity.estimate import Room
from fleetctl.capacity.overhead import HIGH, LOW, model_overhead
from fleetctl.capacity.pages import Paging, page_model
from fleetctl.capacity.shape import Layer, ModelShape
from fleetctl.errors import FleetError

DATA = Path(__file__).resolve().parent / "data/capacity"
GIB = 1024**3
MEDIAN_GOAL, ROW_GOAL = 3.0, 10.0  # per cent

Row = dict[str, str]


@dataclass(frozen=True)
class Compared:
    """One row: fleetctl's figure beside the log's. ``unit`` says of what."""

    row: str
    model: str
    way: str
    mine: float
    truth: float
    unit: str
    remark: str = ""
    counted: bool = True

    @property
    def error(self) -> float:
        """Per cent, without its sign."""
        return abs(self.mine / self.truth - 1) * 100


def main() -> int:
    try:
        compared = [question(rows()) for question in QUESTIONS]
        missing = sorted(set(rows()) - {one.row for one in compared})
        if missing:
            raise BenchError(f"rows of the truth without a question: {', '.join(missing)}")
    except (BenchError, FleetError) as error:
        say(f"error: {error}")
        return 1
    show(compared)
    activations = peaks()
    show_peaks(activations)
    errors = [one.error for one in compared if one.counted]
    exact = [one.error for one in compared if one.counted and one.way in ("log", "blocks")]
    estimates = [one.error for one in compared if one.counted and one.way not in ("log", "blocks")]
    outside = [one.row for one in compared if not one.counted and not one.remark.startswith("inside")]
    print_figures(
        "capacity",
        {
            "median_error": at_most(statistics.median(errors), MEDIAN_GOAL, "%"),
            "largest_error": at_most(max(errors), ROW_GOAL, "%"),
            "rows": Figure(len(errors), "rows"),
            "rows_to_the_token": Figure(sum(error == 0 for error in errors), "rows"),
            "median_error_from_logs": Figure(round(statistics.median(exact), 3), "%"),
            "median_error_of_estimates": Figure(round(statistics.median(estimates), 3), "%"),
            "largest_error_of_estimates": Figure(round(max(estimates), 3), "%"),
            "outside_bounds": at_most(len(outside), 0, "rows"),
            "activations": Figure(len(activations), "rows"),
            "activations_median_error": Figure(round(statistics.median(one.error for one in activations), 1), "%"),
            "activations_outside_bounds": at_most(sum(not within(one) for one in activations), 0, "rows"),
        },
    )
    return 0


def peaks() -> list[Compared]:
    """The peak of activations that engines logged, beside the documented model."""
    with (DATA / "overheads.csv").open(encoding="utf-8") as file:
        logged = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found = []
    for row in logged:
        sizes = {key: int(row[key]) for key in ("hidden", "intermediate", "vocabulary", "experts")}
        shape = ModelShape("", "", (Layer(),), None, heads=1, **sizes)
        batches = {key: int(row[key]) for key in ("tp", "batched_tokens", "sequences")}
        mine = model_overhead(shape, Launch(context=8192, **batches)).activations
        remark = f"{row['gpu']}, {batches['batched_tokens']:,} tokens, {batches['sequences']:,} sequences"
        truth = float(row["activation_gib"])
        found.append(Compared(row["id"], row["model"], "terms", mine / GIB, truth, "GiB", remark))
    return found


def within(one: Compared) -> bool:
    """Whether the log lies between the least and the most that fleetctl holds for likely."""
    return LOW * one.mine <= one.truth <= HIGH * one.mine


def show_peaks(activations: list[Compared]) -> None:
    """Activations beside the logs, on standard error."""
    say(f"\n{'row':<4} {'model':<28} {'fleetctl':>10} {'the log':>10} {'error':>7}  peak of activations, GiB on a rank")
    for one in activations:
        error = f"{(one.mine / one.truth - 1) * 100:+.1f}%"
        say(f"{one.row:<4} {one.model[:28]:<28} {one.mine:>10.2f} {one.truth:>10.2f} {error:>7}  {one.remark}")


def rows() -> dict[str, Row]:
    """The truth by its row's name."""
    with (DATA / "kv-truth.csv").open(encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(line for line in file if not line.startswith("#"))}


def shape_of(name: str) -> ModelShape:
    return read_shape((DATA / f"{name}.json").read_text(encoding="utf-8"), f"{name}.json")


def paging(row: Row, name: str, *, packed: bool = True, **settings: Any) -> Paging:
    """A row's model, paged with the row's settings; ``settings`` stand in for what the row does not say."""
    launch: dict[str, Any] = {
        "context": int(row["max_model_len"] or 0) or None,
        "tp": int(row["tp"]),
        "kv": {"bf16": "bfloat16"}.get(row["kv_dtype"], row["kv_dtype"]),
        "spec_tokens": int(row["spec_tokens"] or 0),
        "backend": CPU if row["box"].endswith("CPU") else CUDA,
    }
    shape = shape_of(name)
    shape = shape if packed else replace(shape, block_outermost=False)
    return page_model(shape, Launch(**{**launch, **settings}))


def memory(row: Row) -> list[int]:
    return [int(float(row["available_gib"]) * GIB)]


def from_log(
    row_id: str, name: str, *, old: bool = False, way: str = "log", remark: str = "", **settings: Any
) -> Callable[[dict[str, Row]], Compared]:
    """Tokens from the memory for the cache that the log gives."""

    def ask(truth: dict[str, Row]) -> Compared:
        row = truth[row_id]
        paged = paging(row, name, **settings)
        mine = paged.tokens_of_old(memory(row)) if old else paged.tokens(memory(row))
        return Compared(row_id, row["model"], way, mine, int(row["tokens"]), "tokens", remark)

    return ask


def from_terms(
    row_id: str, name: str, remark: str, tokens: int | None = None, **settings: Any
) -> Callable[[dict[str, Row]], Compared]:
    """Tokens from share and weights alone, with the documented overhead. ``tokens``: where the row has blocks only."""

    def ask(truth: dict[str, Row]) -> Compared:
        row = truth[row_id]
        paged = paging(row, name, **settings)
        available = left(row, model_overhead(shape_of(name), paged.launch).total)
        truth_tokens = tokens or int(row["tokens"])
        return Compared(row_id, row["model"], "terms", paged.tokens([available]), truth_tokens, "tokens", remark)

    return ask


def left(row: Row, overhead: int) -> int:
    """Memory for the cache on a rank, from share, weights and overhead."""
    requested = Room(int(float(row["total_gib"]) * GIB), float(row["util"])).requested
    return requested - int(float(row["weights_gib"]) * GIB) - overhead


def from_blocks(row_id: str, name: str, count: int, remark: str) -> Callable[[dict[str, Row]], Compared]:
    """Tokens from the log's number of blocks."""

    def ask(truth: dict[str, Row]) -> Compared:
        row = truth[row_id]
        paged = paging(row, name)
        mine = paged.tokens([count * paged.stage_bytes[0]])
        return Compared(row_id, row["model"], "blocks", mine, int(row["tokens"]), "tokens", remark)

    return ask


def flash_next_in_fp8(truth: dict[str, Row]) -> Compared:
    """T4 from T3: the same box, build and checkpoint, with another KV dtype."""
    row, other = truth["T4"], truth["T3"]
    before = paging(other, "qwen3.8-flash-next")
    blocks = round(float(other["concurrency"]) * before.per_request)
    mine = paging(row, "qwen3.8-flash-next").tokens([blocks * before.stage_bytes[0]])
    remark = "the logs of T3 and T4 give no memory"
    return Compared("T4", row["model"], "row T3", mine, int(row["tokens"]), "tokens", remark)


def blocks_of_v0(truth: dict[str, Row]) -> Compared:
    """T9: V0 logged blocks, and no tokens."""
    row = truth["T9"]
    paged = paging(row, "qwen2.5-32b-instruct", context=32768)
    logged = int(row["note"].split()[0])
    return Compared("T9", row["model"], "log", paged.blocks(memory(row)), logged, "blocks")


def memory_of_terms(truth: dict[str, Row]) -> Compared:
    """T5 once more: its memory for the cache from share and weights, which needs no guess at pages."""
    row, shape = truth["T5"], shape_of("qwen3.8-flash-next")
    mine = left(row, model_overhead(shape, Launch(context=int(row["max_model_len"]))).total)
    return Compared("T5", row["model"], "terms", mine / GIB, float(row["available_gib"]), "GiB")


def unknown_caches(truth: dict[str, Row]) -> Compared:
    """T10: the truth must lie between the bounds."""
    row, shape = truth["T10"], shape_of("deepseek-v4-flash")
    launch = Launch(context=1_048_576, tp=2, kv="fp8")
    overhead = model_overhead(shape, launch)
    unknown = shape.unknown
    if unknown is None or unknown.cheapest is None:
        raise BenchError("T10: its caches were to be unknown, with bounds")
    low = page_model(shape, launch, unknown.dearest).tokens([left(row, overhead.high)])
    high = page_model(shape, launch, unknown.cheapest).tokens([left(row, overhead.low)])
    tokens = int(row["tokens"])
    where = "inside" if low <= tokens <= high else "OUTSIDE"
    remark = f"{where} {low:,} to {high:,}"
    return Compared("T10", row["model"], "bounds", low, tokens, "tokens", remark, counted=False)


QUESTIONS: tuple[Callable[[dict[str, Row]], Compared], ...] = (
    from_log("T1", "qwen3.6-35b-a3b"),
    from_log("T2", "qwen3.6-35b-a3b", old=True, remark="the formula of old builds"),
    from_blocks("T3", "qwen3.8-flash-next", 744, "744 blocks: the row's 4.11 x 181"),
    flash_next_in_fp8,
    from_log(
        "T5",
        "qwen3.8-flash-next",
        way="read",
        kv="fp8",
        packed=False,
        remark="12.57 requests fit FP8, and a table for each layer; the row says BF16",
    ),
    from_log("T6", "minimax-m2.7", remark="memory of one rank; the smaller one decided"),
    from_log("T7", "qwen3.8-27b", way="read", spec_tokens=0, remark="its 90 blocks a request are those of no draft"),
    from_log("T8", "qwen3.6-35b-a3b"),
    blocks_of_v0,
    from_terms(
        "T9",
        "qwen2.5-32b-instruct",
        "the overhead model was made with this row",
        tokens=3947 * 16,
        context=32768,
    ),
    memory_of_terms,
    unknown_caches,
    from_log("T11", "tiny-llama"),
    from_log("T12", "tiny-llama"),
    from_blocks("T13", "qwen3.8-flash-next", 337, "177 blocks a request fit the shape of Qwen3.8-Flash-Next"),
    from_terms("T14", "qwen3.8-flash-next", "the shape is inferred: see T13; the reporter rounded"),
    from_terms("T15", "qwen3.8-flash-next", "the shape is inferred: see T13; the reporter rounded"),
)


def figure(one: Compared, value: float) -> str:
    return f"{value:,.2f}" if one.unit == "GiB" else f"{value:,.0f}"


def show(compared: list[Compared]) -> None:
    """The table, on standard error."""
    say(f"{'row':<4} {'model':<28} {'from':<7} {'fleetctl':>10} {'the log':>10} {'error':>7}  remark")
    for one in compared:
        error = f"{(one.mine / one.truth - 1) * 100:+.2f}%" if one.counted else ""
        unit = "" if one.unit == "tokens" else f"({one.unit}) "
        say(
            f"{one.row:<4} {one.model[:28]:<28} {one.way:<7} {figure(one, one.mine):>10} {figure(one, one.truth):>10}"
            f" {error:>7}"
            f"  {unit}{one.remark}".rstrip()
        )
    guessed = [f"{one.row} ({one.way})" for one in compared if one.counted and one.way not in ("log", "blocks")]
    say(f"an input is an estimate, or inferred, in {', '.join(guessed)}; the shape is inferred in T13 to T15")


if __name__ == "__main__":
    sys.exit(main())
