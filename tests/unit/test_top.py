"""The live screen, with textual's own pilot: what is on it, at which size, and what keys do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
from seen import copy_on, figures, minutes, sample
from textual.pilot import Pilot
from textual.widgets import RichLog, Static

from fleetctl.errors import FleetError
from fleetctl.facts.assess import Assessment
from fleetctl.facts.types import Lock, MoveFacts
from fleetctl.watch.pool_sample import PoolEngineSample, PoolModelSample, PoolSample
from fleetctl.watch.sample import BoxSample, Figures, ProxySample, Sample
from fleetctl.watch.top.app import Judged, Sampled, Top
from fleetctl.watch.top.bars import UNKNOWN, graph, spark
from fleetctl.watch.top.commands import command_of
from fleetctl.watch.top.history import History
from fleetctl.watch.top.picture import picture
from fleetctl.watch.top.tables import COLUMNS
from fleetctl.watch.top.tables import figures as words_of
from fleetctl.watch.top.words import NOT_KNOWN, number, percent, seconds
from fleetctl.watch.top.wrong import remarks

SMALL, LARGE = (80, 24), (160, 48)
ECHO = (sys.executable, "-c", "import sys; print('ran', *sys.argv[1:]); print('to err', file=sys.stderr); sys.exit(3)")
FOREVER = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(300)")

Test = Callable[..., Coroutine[Any, Any, None]]


def on_screen(test: Test) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def screen(
    *samples: Sample, size: tuple[int, int] = SMALL, found: Assessment | None = None, **more: Any
) -> AsyncIterator[Pilot[None]]:
    """The screen after these samples."""
    app = Top(lambda: samples[0], live=False, **more)
    async with app.run_test(size=size) as pilot:
        if found is not None:
            app.post_message(Judged(found))
        for one in samples:
            app.post_message(Sampled(one))
        await pilot.pause()
        yield pilot


def lines_on(pilot: Pilot[None]) -> list[str]:
    """What is on the screen, line by line, as a person sees it."""
    app = pilot.app
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line[2:].startswith(name))


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "\n".join(lines_on(pilot))
        await pilot.pause(0.02)


# What is on it


@pytest.mark.parametrize("size", [SMALL, (100, 30), LARGE])
@on_screen
async def test_every_figure_of_every_copy_box_and_the_proxy_is_on_the_screen(size: tuple[int, int]) -> None:
    async with screen(*minutes(60), size=size) as pilot:
        lines = lines_on(pilot)
    assert len(lines) == size[1] and max(map(len, lines)) <= size[0]
    text = "\n".join(lines)
    assert lines[0].startswith("office: replicas, generation 12") and lines[0].endswith("every 2 s")
    for name in ("qwen@spark1", "qwen@spark2"):
        for word in ("up", "1204", "11", "13", "0.53s", "41%", "72%", "80%"):
            assert f" {word} " in row(lines, name) + " ", (name, word)
    assert " 2408 " in row(lines, "total") and " 22 " in row(lines, "total")
    assert "31.2G  121.7G" in row(lines, "spark1") and "12.5%" in row(lines, "spark2")
    assert row(lines, "proxy").split() == ["proxy", "3", "waiting", "22", "running", "4", "requests/s"]
    assert "over time" in text and "█" in text
    assert lines[-1].startswith("d drain")


@on_screen
async def test_a_wide_screen_has_bars_beside_each_copy_and_a_large_graph_of_all() -> None:
    async with screen(*minutes(120), size=LARGE) as pilot:
        lines = lines_on(pilot)
    assert len([letter for letter in row(lines, "qwen@spark1") if letter in "▁▂▃▄▅▆▇█"]) > 40
    start = next(number for number, line in enumerate(lines) if "all tokens/s over time" in line)
    tall = [line for line in lines[start + 1 :] if "█" in line]
    assert len(tall) > 8


@on_screen
async def test_a_copy_that_cannot_be_read_is_unknown_and_never_zero() -> None:
    why = "nothing to read at 10.0.0.2:8000: Connection refused"
    gone = copy_on("spark2", why=why, server="DOWN")
    async with screen(sample(), sample(copy_on("spark1"), gone)) as pilot:
        lines = lines_on(pilot)
    assert row(lines, "qwen@spark2").split()[1:3] == ["unknown", NOT_KNOWN]
    assert not any(letter.isdigit() for letter in row(lines, "qwen@spark2").replace("spark2", ""))
    assert "1 of 2" in row(lines, "total")
    assert any(line.startswith("wrong: replicas/qwen@spark2 is not known: nothing to read at") for line in lines)
    bars = [line for line in lines if "qwen@spark2" in line][-1]
    assert bars.endswith("█" + UNKNOWN)


@on_screen
async def test_nothing_known_at_all_is_no_zero_either() -> None:
    away = BoxSample(why="no answer within 2 s")
    gone = [copy_on(box, why=f"{box}: no answer within 2 s", server="unknown", unit="unknown") for box in ("a", "b")]
    seen = sample(*gone, boxes={"a": away, "b": away}, proxy=ProxySample(), total=Figures())
    async with screen(seen) as pilot:
        lines = lines_on(pilot)
    for name in ("qwen@a", "qwen@b", "total", "a ", "proxy"):
        assert "0" not in row(lines, name).replace("0 of 2", ""), name
    assert "wrong: a is not known: no answer within 2 s" in lines
    assert not any("qwen@a is not known" in line for line in lines), "its box says it"


@on_screen
async def test_before_the_first_sample_it_says_what_it_does() -> None:
    async with screen() as pilot:
        assert any("looking at the engines" in line for line in lines_on(pilot))
        await pilot.press("d", "down")
        assert pilot.app.is_running


@on_screen
async def test_more_copies_than_lines_can_be_scrolled_by_choosing() -> None:
    copies = [copy_on(f"box{number:02}") for number in range(32)]
    async with screen(sample(*copies)) as pilot:
        assert not any("box31 " in line for line in lines_on(pilot))
        await pilot.press(*["down"] * 40)
        await pilot.pause()
        assert row(lines_on(pilot), "qwen@box31")
        await pilot.press(*["up"] * 40)
        await pilot.pause()
        assert any(line.startswith("> qwen@box00") for line in lines_on(pilot))


@on_screen
async def test_long_names_and_narrow_terminals_are_cut_and_not_wrapped() -> None:
    long = copy_on("a-box-with-a-very-long-name-indeed-that-nobody-would-type")
    async with screen(sample(long), size=(60, 20)) as pilot:
        lines = lines_on(pilot)
    assert any("…" in line for line in lines) and len(lines) == 20


# What is wrong


def move(end: dict[str, Any] | None = None) -> MoveFacts:
    return MoveFacts(
        move="m", end=end, operation="cutover", from_layout="split", to_layout="replicas", who="ann", started=1.0
    )


def lock() -> Lock:
    return Lock(token="t", who="ann", host="desk", pid=7, command="fleetctl cutover", age=9, silent=0.1)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"unfinished": move(), "lock": lock()}, "under way: cutover split → replicas by ann"),
        ({"unfinished": move()}, "wrong: cut off: cutover split → replicas by ann; `fleetctl cutover --to replicas`"),
        ({"lock": lock()}, "under way: held: ann on desk (pid 7) runs `fleetctl cutover`"),
        ({"problems": ["spark2: the guard does not run"]}, "wrong: spark2: the guard does not run"),
        ({"notes": ["spark1 is drained"]}, "note: spark1 is drained"),
        ({"problems": [f"problem {number}" for number in range(9)]}, "and 5 more: fleetctl status"),
    ],
)
@on_screen
async def test_what_status_tells_is_a_line_of_the_screen(found: dict[str, Any], told: str) -> None:
    async with screen(sample(), found=Assessment("office", "replicas", 12, 11, **found)) as pilot:
        lines = lines_on(pilot)
    assert told in " ".join(line.strip() for line in lines), lines
    assert row(lines, "proxy"), "whatever is wrong, the rest is still on the screen"


def test_requests_that_wait_while_none_runs_and_no_token_moves_are_told_after_two_samples() -> None:
    dead = copy_on("spark1", figures=replace(figures(0, waiting=3), running=0, prompt_rate=0))
    history = History()
    history.add(sample(dead))
    assert not history.stuck(dead.id)
    history.add(sample(dead))
    assert [one.text for one in remarks(sample(dead), None, history)] == [
        "replicas/qwen@spark1: requests wait, none runs, and no token is read or made; it may hang"
    ]
    history.add(sample(replace(dead, figures=replace(dead.figures, prompt_rate=800))))
    assert not history.stuck(dead.id)


def test_a_box_that_status_has_told_of_is_not_told_of_twice() -> None:
    seen = sample(boxes={"spark2": BoxSample(why="spark2: no answer from 10.0.0.2 port 22")})
    found = Assessment("office", "replicas", 1, None, problems=["spark2 cannot be reached: no answer"])
    assert [one.text for one in remarks(seen, found, History())] == ["spark2 cannot be reached: no answer"]
    assert [one.text for one in remarks(seen, None, History(), failed="x")][1] == (
        "spark2 is not known: no answer from 10.0.0.2 port 22"
    )


# Keys


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("d", "drain spark2 --yes --fleet office.yaml"),
        ("u", "undrain spark2 --yes --fleet office.yaml"),
        ("r", "restart spark2 --yes --fleet office.yaml"),
    ],
)
@on_screen
async def test_a_change_is_shown_as_its_command_and_runs_when_it_is_agreed_to(key: str, words: str) -> None:
    async with screen(sample(), options=("--fleet", "office.yaml"), program=ECHO) as pilot:
        await pilot.press("down", key)
        assert str(pilot.app.screen.query_one("#command", Static).render()).strip() == f"fleetctl {words}"
        await pilot.press("y")
        await until(pilot, lambda: any("ended with status 3" in line for line in lines_on(pilot)))
        text = "\n".join(lines_on(pilot))
        assert f"ran {words}" in text and "to err" in text
        await pilot.press("escape")
        assert any(line.startswith("> qwen@spark2") for line in lines_on(pilot)), "back on the screen"


@pytest.mark.parametrize("answer", ["n", "escape", "enter", "q"])
@on_screen
async def test_anything_but_yes_changes_nothing(answer: str) -> None:
    async with screen(sample(), program=("/nowhere/at/all",)) as pilot:
        await pilot.press("r", answer)
        await pilot.pause()
        assert len(pilot.app.screen_stack) == 1 and pilot.app.is_running


@on_screen
async def test_the_log_of_a_copy_needs_no_yes_and_ends_with_its_screen() -> None:
    async with screen(sample(), program=FOREVER, options=("--via", "spark1"), may_change=False) as pilot:
        await pilot.press("d")
        assert len(pilot.app.screen_stack) == 1, "nothing can be changed without the file"
        await pilot.press("l")
        await until(pilot, lambda: any("begun" in line for line in lines_on(pilot)))
        output = pilot.app.screen
        assert str(output.query_one("#command", Static).render()) == (
            "fleetctl logs replicas/qwen@spark1 -f --via spark1"
        )
        await pilot.press("escape")
        assert len(pilot.app.screen_stack) == 1
        await until(pilot, lambda: not output._child.running())  # type: ignore[attr-defined]


@on_screen
async def test_a_change_under_way_is_not_left_alone_and_ctrl_c_is_handed_to_it() -> None:
    async with screen(sample(), program=FOREVER) as pilot:
        await pilot.press("d", "y")
        await until(pilot, lambda: any("begun" in line for line in lines_on(pilot)))
        await pilot.press("escape", "q")
        assert len(pilot.app.screen_stack) == 2 and pilot.app.is_running
        await pilot.press("ctrl+c")
        await until(pilot, lambda: any("ended with status" in line for line in lines_on(pilot)))
        assert pilot.app.screen.query_one("#output", RichLog).lines
        await pilot.press("escape")
        assert len(pilot.app.screen_stack) == 1


@on_screen
async def test_a_drain_that_would_leave_a_model_without_an_engine_is_not_offered() -> None:
    split = copy_on("spark1", id="split/qwen", boxes=("spark1", "spark2"))
    async with screen(sample(split)) as pilot:
        await pilot.press("d")
        await pilot.pause()
        assert len(pilot.app.screen_stack) == 1, "nothing is asked"
        await pilot.press("r")
        assert len(pilot.app.screen_stack) == 2, "a restart is, for it holds the requests"
    other = copy_on("spark2", id="replicas/notes@spark2", model="notes")
    async with screen(sample(copy_on("spark1"), other)) as pilot:
        await pilot.press("d")
        assert len(pilot.app.screen_stack) == 1, "a copy of another model does not serve this one"


@on_screen
async def test_space_holds_the_picture_and_what_happens_meanwhile_is_in_the_bars_afterwards() -> None:
    async with screen(sample(copy_on("spark1", figures=figures(100)))) as pilot:
        await pilot.press("space")
        pilot.app.post_message(Sampled(sample(copy_on("spark1", figures=figures(777)))))
        await pilot.pause()
        assert "PAUSED" in lines_on(pilot)[0] and " 777 " not in row(lines_on(pilot), "qwen@spark1")
        await pilot.press("space")
        pilot.app.post_message(Sampled(sample(copy_on("spark1", figures=figures(555)))))
        await pilot.pause()
        assert " 555 " in row(lines_on(pilot), "qwen@spark1") and "PAUSED" not in lines_on(pilot)[0]
        assert [*pilot.app.history.rate_of("replicas/qwen@spark1")] == [100, 777, 555]  # type: ignore[attr-defined]


@on_screen
async def test_help_fits_the_smallest_screen_and_any_key_of_leaving_closes_it() -> None:
    async with screen(sample()) as pilot:
        await pilot.press("question_mark")
        lines = lines_on(pilot)
        assert any("up, down  choose a copy" in line for line in lines)
        assert any("never shown as 0" in line for line in lines)
        await pilot.press("q")
        assert len(pilot.app.screen_stack) == 1 and pilot.app.is_running
        await pilot.press("q")
        await pilot.pause()
        assert not pilot.app.is_running


# Living with boxes that are away


@on_screen
async def test_keys_are_answered_while_a_sample_hangs_and_what_status_cannot_tell_is_said() -> None:
    hanging = threading.Event()

    def take() -> Sample:
        hanging.wait(30)
        return sample()

    def judge() -> Assessment:
        raise FleetError("spark1: no answer\nspark2: no answer")

    app = Top(take, judge)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: any("state of the fleet is not known" in line for line in lines_on(pilot)))
        await pilot.press("question_mark")
        assert any("choose a copy" in line for line in lines_on(pilot))
        await pilot.press("escape")
        hanging.set()
        await until(pilot, lambda: any("qwen@spark1" in line for line in lines_on(pilot)))
        await pilot.press("q")


# The parts


def test_bars_tell_zero_from_what_is_not_known() -> None:
    assert spark([0, None, 5, 10], 4, 10) == f"▁{UNKNOWN}▅█"
    assert spark([1, 2], 4, 2) == "  ▅█"
    assert spark([0, 0], 2, 0) == "▁▁" and spark([1], 0, 1) == ""
    assert graph([0, None, 4, 8], 4, 2, 8) == ["   █", f"▁{UNKNOWN}██"]


def test_what_is_remembered_is_bounded_and_forgets_copies_that_are_gone() -> None:
    history = History(length=5)
    for one in minutes(50):
        history.add(one)
    assert len(history.generation) == len(history.rate_of("replicas/qwen@spark1")) == 5
    history.add(sample(copy_on("spark9")))
    assert [*history.rate_of("replicas/qwen@spark9")] == [None] * 4 + [100]
    assert history.rate_of("replicas/qwen@spark1") == ()


def test_words_are_short_and_unknown_is_a_dash() -> None:
    rates = [None, 0, 0.44, 9.96, 208.4, 12345, 999_999, 2.5e6]
    assert [number(value) for value in rates] == [NOT_KNOWN, "0", "0.4", "10.0", "208", "12.3k", "1.0M", "2.5M"]
    assert [seconds(value) for value in (None, 0.0534, 0.534, 12.3, 256)] == [NOT_KNOWN, "53ms", "0.53s", "12s", "4.3m"]
    assert [percent(value) for value in (None, 0, 0.414, 1)] == [NOT_KNOWN, "0%", "41%", "100%"]
    assert words_of(Figures()) == [NOT_KNOWN] * len(COLUMNS) == words_of(figures(), known=False)


def test_a_split_is_drained_by_the_box_of_its_head_and_all_its_boxes_are_named() -> None:
    split = copy_on("spark1", id="split/qwen", boxes=("spark1", "spark2"))
    command = command_of("drain", split, ())
    assert str(command) == "fleetctl drain spark1 --yes" and "spark1, spark2" in command.says
    assert str(command_of("logs", split, ())) == "fleetctl logs split/qwen -f"


def test_a_picture_is_svg_with_the_figures_in_it() -> None:
    svg = picture(minutes(40), size=(120, 32), title="office")
    text = "".join(ET.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "qwen@spark1" in text and "tokens/s over time" in text and "office" in text


# The command


def run(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from fleetctl.cli.main import main; main()", "top", *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)


def test_without_a_terminal_it_says_what_to_do() -> None:
    done = run()
    assert (done.returncode, "this is none" in done.stderr, "--once" in done.stderr) == (2, True, True)
    assert json.loads(run("--once", "--json", "--fleet", "missing.yaml").stdout)["exit_code"] == 2


def test_textual_is_imported_by_the_screen_alone() -> None:
    code = "import sys, fleetctl.cli.main, fleetctl.cli.top, fleetctl.cli.show_top; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@on_screen
async def test_an_engine_of_a_pool_is_chosen_as_a_copy_is() -> None:
    engines = tuple(PoolEngineSample(f"pool/minilm@{box}", "minilm", box, "loaded", running=2) for box in ("a", "b"))
    pool = PoolSample(engines=engines, models={"minilm": PoolModelSample(waiting=3, oldest=1.0)}, waiting=3)
    shown = replace(sample(), copies=(), layout="pool", pool=pool)
    async with screen(shown, options=("--fleet", "office.yaml"), program=ECHO) as pilot:
        await pilot.press("down")
        assert any(line.startswith("> minilm@b") for line in lines_on(pilot)), lines_on(pilot)
        assert any(line.startswith("  queue: 3 waiting") for line in lines_on(pilot))
        await pilot.press("d")
        command = str(pilot.app.screen.query_one("#command", Static).render()).strip()
        assert command == "fleetctl drain b --yes --fleet office.yaml"
