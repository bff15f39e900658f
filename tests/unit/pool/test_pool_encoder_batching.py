"""Requests become batches at once, lanes share what there is, and nothing is computed for a client that has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from fleetctl.pool.encoder.batching import LEAST_SHARE, Batcher  # noqa: E402
from fleetctl.pool.encoder.errors import RequestError  # noqa: E402
from fleetctl.pool.encoder.metrics import Figures, text  # noqa: E402

WAIT = 20.0
Texts = Sequence[Sequence[int]]


class Gate:
    """Computes when it is let; a vector is the first token and the number of tokens."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = threading.Event()

    def __call__(self, texts: Texts) -> Any:
        self.batches.append([len(one) for one in texts])
        assert self.open.wait(WAIT)
        if texts[0][0] < 0:
            raise RuntimeError("no such token")
        return np.array([[one[0], len(one)] for one in texts], np.float32)


def run(lanes: int, body: Callable[[Batcher, Gate, Figures], Awaitable[None]]) -> None:
    async def whole() -> None:
        gate, figures = Gate(), Figures()
        batcher = Batcher(gate, lanes, 1000, 8, figures)
        try:
            await asyncio.wait_for(body(batcher, gate, figures), WAIT)
        finally:
            gate.open.set()
            await batcher.close()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_an_idle_engine_begins_at_once_and_what_came_meanwhile_is_the_next_batch() -> None:
    async def body(batcher: Batcher, gate: Gate, figures: Figures) -> None:
        requests = [asyncio.create_task(batcher.embed([[1] * 5]))]
        await until(lambda: gate.batches == [[5]])
        requests += [asyncio.create_task(batcher.embed([[number] * 6, [number] * 7])) for number in (2, 3)]
        await until(lambda: figures.waiting == 2)
        assert figures.running == 1
        gate.open.set()
        answers = [answer.tolist() for answer in await asyncio.gather(*requests)]
        assert answers == [[[1, 5]], [[2, 6], [2, 7]], [[3, 6], [3, 7]]]
        assert [sorted(one) for one in gate.batches] == [[5], [6, 6, 7, 7]]
        assert (figures.running, figures.waiting, figures.inputs) == (0, 0, 5)
        assert (figures.prompt_tokens, figures.padding_tokens) == (31, 2)

    run(1, body)


def test_free_lanes_share_a_large_request_and_leave_a_small_one_whole() -> None:
    async def body(batcher: Batcher, gate: Gate, figures: Figures) -> None:
        gate.open.set()
        await batcher.embed([[1] * 10] * 4)
        assert [len(one) for one in gate.batches] == [4]
        gate.batches.clear()
        await batcher.embed([[1] * LEAST_SHARE] * 4)
        assert [len(one) for one in gate.batches] == [2, 2]

    run(2, body)


def test_what_was_not_begun_is_dropped_when_its_client_goes() -> None:
    async def body(batcher: Batcher, gate: Gate, figures: Figures) -> None:
        first = asyncio.create_task(batcher.embed([[1] * 5]))
        await until(lambda: len(gate.batches) == 1)
        gone = asyncio.create_task(batcher.embed([[2] * 5]))
        await until(lambda: figures.waiting == 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert figures.waiting == 0
        gate.open.set()
        await first
        await batcher.embed([[3] * 9])
        assert gate.batches == [[5], [9]]

    run(1, body)


def test_a_batch_that_fails_fails_its_requests_alone() -> None:
    async def body(batcher: Batcher, gate: Gate, figures: Figures) -> None:
        gate.open.set()
        with pytest.raises(RequestError, match="computing it failed: no such token") as caught:
            await batcher.embed([[-1] * 5, [1] * 900])
        assert caught.value.status == 500
        assert (await batcher.embed([[4]])).tolist() == [[4, 1]]
        assert (figures.running, figures.waiting) == (0, 0)

    run(1, body)


def test_the_page_of_metrics_has_vllm_s_names_and_is_in_prometheus_s_format() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    figures = Figures(running=1, prompt_tokens=31, succeeded=2)
    figures.refuse(400)
    figures.batch_tokens.observe(31)
    families = {one.name: one for one in parser.text_string_to_metric_families(text(figures, 'a "b"\n'))}
    samples = {(one.name, one.labels.get("le")): one for family in families.values() for one in family.samples}
    assert samples["vllm:num_requests_running", None].value == 1
    assert samples["vllm:prompt_tokens_total", None].labels == {"model_name": 'a "b"\n'}
    assert samples["vllm:request_success_total", None].value == 2
    assert samples["encoder:request_errors_total", None].labels["code"] == "400"
    buckets = [samples["vllm:iteration_tokens_total_bucket", le].value for le in ("16.0", "32.0", "+Inf")]
    assert buckets == [0, 1, 1]
