"""The stand-in engine makes tokens at the rate of its curve, and reads long prompts slowly."""

import threading
import time

import pytest
from standin_process import start

from fleetctl.lab.standin.engine import throughput
from fleetctl.lab.standin.settings import Settings

SPEED = 20


@pytest.mark.parametrize(
    ("running", "rate"), [(1, 36), (2, 36 + 46 / 3), (4, 82), (8, 109), (12, 129.5), (16, 150), (40, 150)]
)
def test_the_curve_is_linear_between_its_points_and_flat_after_them(running: int, rate: float) -> None:
    assert throughput(Settings().curve, running) == pytest.approx(rate)


def test_long_prompts_have_their_knee_before_16() -> None:
    curve = Settings().long_curve
    assert throughput(curve, 8) > throughput(curve, 16)


@pytest.mark.parametrize(("running", "rate", "prompt"), [(1, 36, "x"), (4, 82, "x"), (16, 87, "long " * 2000)])
def test_measured_tokens_per_second_follow_the_curve(running: int, rate: float, prompt: str) -> None:
    """A loaded machine can only be slower than the curve, so the lower bound is a loose one."""
    tokens = 0.5 * SPEED * rate // running
    body = {"prompt": prompt, "max_tokens": int(tokens), "ignore_eos": True}
    with start("--max-num-seqs", "16", speed=SPEED, prefill_seconds_per_token=0) as engine:
        engine.wait_ready()
        done: list[int] = []

        def one() -> None:
            usage = engine.client.post("/v1/completions", json=body).json()["usage"]
            done.append(usage["completion_tokens"])

        threads = [threading.Thread(target=one) for _ in range(running)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        measured = sum(done) / (time.monotonic() - began)
    assert 0.7 * rate * SPEED < measured < 1.1 * rate * SPEED


def test_the_first_token_of_a_long_prompt_takes_the_prefill_time() -> None:
    body = {"prompt": "word" * 16_900, "max_tokens": 1}
    with start("--no-enable-prefix-caching", speed=20) as engine:
        engine.wait_ready()
        began = time.monotonic()
        assert engine.client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == 16_900
        assert time.monotonic() - began > 9.6 / 20
