"""The figures of ``fleetctl bench`` in a terminal."""

from __future__ import annotations

from rich.console import Console

from fleetctl.cli.show_bench import show_bench


def test_a_load_in_which_no_answer_came_to_its_end_says_so_in_place_of_an_empty_table() -> None:
    out = Console(width=100, record=True)
    told = {
        "generator": None,
        "what": "proxy",
        "model": "minilm",
        "mix": "chat",
        "concurrency": 2,
        "rate": None,
        "seconds": 1.0,
        "requests_per_minute": 0.0,
        "tokens_out_rate": 48.0,
        "tokens_in_rate": 0.0,
        "answered": 0,
        "requests": 0,
    }
    show_bench(told, out)
    assert out.export_text().splitlines()[-1] == "no answer came to its end in 1 s: take a longer --duration"
