"""The engine core of one of two copies of real vLLM stops for a while, as a hung one does; its API server does not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import yaml
from test_real_moves import PATIENCE, Table, ask, move, until

from fleetctl.lab.lab import Lab

MANY = 8  # requests at once: with few a quick machine may have answered those of one copy before anybody looks


def usable(lab: Lab) -> int:
    """Engines that get requests, as the proxy says."""
    address = f"http://{lab.box('box1').address}:8080/fleetctl/health"
    return sum(httpx.get(address, timeout=PATIENCE, trust_env=False).json()["usable"].values())


def test_requests_on_a_copy_whose_core_hangs_are_answered_by_the_other(lab: Lab, table: Table) -> None:
    written = lab.fleet_file.read_text()
    document = yaml.safe_load(written)
    document["proxy"]["silence_limit"] = "5s"
    lab.fleet_file.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        move(lab, "replicas", "cutover", "--to", "replicas")
        until(lambda: usable(lab) == 2, lab)
        with ThreadPoolExecutor(MANY) as pool:
            asked = [pool.submit(ask, lab, tokens=900) for _ in range(MANY)]
            hung = until(lambda: running(lab, "box2") >= 1, lab)
            lab.exec("box2", ["pkill", "-STOP", "-f", "VLLM::EngineCore"])
            out = until(lambda: usable(lab) == 1, lab)
            assert [one.result().status_code for one in asked] == [200] * MANY
        assert ask(lab, tokens=4).status_code == 200
        lab.exec("box2", ["pkill", "-CONT", "-f", "VLLM::EngineCore"])
        until(lambda: usable(lab) == 2, lab)
    finally:
        lab.fleet_file.write_text(written)
    table.append(("a core hangs (5 s)", "", f"{out - hung:.1f}", "", "", "", str(MANY + 1), "0", ""))


def running(lab: Lab, box: str) -> float:
    """Requests that the engine on a box works on, from its own metrics."""
    page = httpx.get(f"http://{lab.box(box).address}:8000/metrics", timeout=PATIENCE, trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
    return sum(float(line.split()[-1]) for line in lines)
