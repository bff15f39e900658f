"""What engines' own logs and counters say, on lines as vLLM prints them and journald keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from planned import boxes_in, layout, office

from fleetctl.doctor.engines.family import ask, find
from fleetctl.doctor.engines.told import EnginesTold, EngineTold, ToolAnswer
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.processes import ProcessesTold
from fleetctl.doctor.processes import find as processes
from fleetctl.doctor.scene import Scene
from fleetctl.facts.types import ProcessFacts
from fleetctl.onbox.engine_asking import counters
from fleetctl.onbox.examine_engines import Log

NOW = 1_800_000_000.0
CORE = "(EngineCore_DP0 pid=123) INFO 11-30 07:10:02 "
BROADCAST = (
    "[shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds. This typically happens "
    "when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache "
    "quantization)."
)
HEALTH = 'INFO:     10.0.0.1:41234 - "GET /health HTTP/1.1" 200 OK'
IDLE = (
    "(APIServer pid=9) INFO 11-30 07:12:02 [loggers.py:310] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
    "generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache "
    "hit rate: 0.0%"
)
HUNG = IDLE.replace("Waiting: 0 reqs", "Waiting: 3 reqs")
FULL = HUNG.replace("Running: 0", "Running: 12").replace("0.0 tokens/s", "80.0 tokens/s")
UP = "INFO:     Application startup complete."
STARTING = "Starting fleetctl-split-qwen.service - fleetctl engine qwen of layout split (rank 0 of 2)..."
ALIVE = {"running": 1.0, "waiting": 0.0, "tokens": 100.0}


def told(
    *lines: str,
    active: str = "active",
    every: float = 10.0,
    restarts: int = 0,
    began: float = NOW - 7200,
    looks: Sequence[dict[str, float]] = (),
    ago: float = 5.0,
) -> EngineTold:
    """A unit whose log has these lines, ``every`` so many seconds, the last one ``ago``."""
    log = Log(active, began, restarts)
    for number, line in enumerate(reversed(lines)):
        said_by = "systemd[1]" if line.startswith(("Starting", "Started")) else "python3[77]"
        log.take(f"{NOW - ago - number * every:.6f} box1 {said_by}: {line}".encode())
    facts: dict[str, Any] = {"active": active, "restarts": restarts, "began": began, "now": NOW, "looks": tuple(looks)}
    return EngineTold.model_validate({**facts, **log.told()})


def found(one: EngineTold | None, two: EngineTold | None = None, of: str = "split", **changes: Any) -> list[Finding]:
    """Findings about an engine with what its units on a and b told."""
    live = layout(of, **changes)
    observed = boxes_in(live)
    scene = Scene(office(**changes), (live,), live, observed, {})
    units = {"a": one, "b": two}
    there = {box: {rank.unit: said for _, rank in live.ranks_on(box)} for box, said in units.items() if said}
    return [*find(scene, {box: EnginesTold(engines=engines) for box, engines in there.items()})]


# What the log says → code, and words of the exact fix.
SYMPTOMS: dict[str, tuple[EngineTold, str, tuple[str, ...]]] = {
    "Init torch distributed begin with no follower": (
        told(CORE + "[parallel_state.py:1823] Init torch distributed begin.", HEALTH, active="activating", ago=300),
        "E01",
        ("fleetctl-split-qwen.service", "on b", "fleetctl link test"),
    ),
    "the ranks' own meeting waits": (
        told("rank 0: waiting for rank [1] on 10.1.0.1 port 29501", active="activating", ago=100),
        "E01",
        ("on b",),
    ),
    "RayWorkerProc rank=[2] died unexpectedly": (
        told(
            STARTING,
            "(EngineCore_DP0 pid=4) ERROR 11-30 07:10:02 [ray_executor_v2.py:523] RayWorkerProc rank=[2] died "
            "unexpectedly, shutting down executor.",
            active="failed",
        ),
        "E02",
        ("fleetctl restart qwen", "journalctl -u fleetctl-split-qwen.service"),
    ),
    "Failed to recv, got 0 bytes": (
        told(*["[rank1]: Failed to recv, got 0 bytes. Connection was likely closed."] * 40),
        "E03",
        ("fleetctl restart qwen", "(a)"),
    ),
    "no broadcast block for ever, while it serves": (
        told(UP, FULL, *[CORE + BROADCAST, HEALTH, HUNG.replace("Running: 0", "Running: 1")] * 5, every=20),
        "E04",
        ("fleetctl link test", "fleetctl restart qwen"),
    ),
    "no broadcast block, requests that run, and no token": (
        told(UP, *[CORE + BROADCAST] * 3, looks=[ALIVE] * 2),
        "E04",
        ("fleetctl link test",),
    ),
    "Ray version mismatch": (
        told(
            "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.43.0 Python: 3.12.3 This process "
            "on node 10.0.0.2 was started with: Ray: 2.44.1",
            active="activating",
            restarts=3,
        ),
        "E05",
        ("same vLLM", "a, b"),
    ),
    "ranks with other builds": (
        told(
            "rank 0: rank 1 (b) has vllm-0.11, the head has vllm-0.12: install the same build on every box",
            active="failed",
        ),
        "E05",
        ("same vLLM",),
    ),
    "the rendezvous port is taken": (
        told(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            active="activating",
            restarts=2,
        ),
        "E06",
        ("sport = :29500", "on a", "layouts: {split: {qwen: {master_port: NUMBER}}}"),
    ),
    "Timed out waiting for engines to send initial message": (
        told("TimeoutError: Timed out waiting for engines to send initial message on input socket.", active="failed"),
        "E07",
        ("load_limit: 1200s", "VLLM_ENGINE_READY_TIMEOUT_S: '1200'"),
    ),
    "the same of vLLM 0.32": (
        told(
            "(APIServer pid=7) TimeoutError: Timed out waiting for engine core processes to start. This is often "
            "caused by slow weight loading for large models. Waited 600s (configured by "
            "VLLM_ENGINE_READY_TIMEOUT_S).",
            active="failed",
        ),
        "E07",
        ("models: {qwen: {load_limit",),
    ),
    "Running: 0 reqs, Waiting: 3 reqs in the log": (
        told(UP, HUNG, HUNG, HEALTH, HUNG),
        "E08",
        ("fleetctl restart qwen",),
    ),
    "requests that wait, none running, a flat token counter": (
        told(UP, looks=[{"running": 0.0, "waiting": 3.0, "tokens": 900.0}] * 2),
        "E08",
        ("fleetctl restart qwen",),
    ),
    "auto tool choice without its flags": (
        told(
            '(APIServer pid=7) ERROR 11-30 07:10:02 [serving.py:212] "auto" tool choice requires '
            "--enable-auto-tool-choice and --tool-call-parser to be set"
        ),
        "E09",
        ("--enable-auto-tool-choice", "--tool-call-parser", "models: {qwen"),
    ),
    "<tool_call> as text in the content": (
        told(
            "(APIServer pid=7) INFO 11-30 07:10:02 [logger.py:62] Generated response chatcmpl-1: {'role': "
            '\'assistant\', \'content\': \'<tool_call>\\n{"name": "get_weather", "arguments": '
            "{}}\\n</tool_call>', 'tool_calls': []}"
        ),
        "E09",
        ('"--tool-call-parser", "hermes"',),
    ),
    "a parser that fails": (
        told("(APIServer pid=7) ERROR 11-30 07:10:02 [hermes.py:136] Error in extracting tool call from response."),
        "E09",
        ("--tool-call-parser",),
    ),
    "Accepted: 0 tokens, Drafted: 40 tokens": (
        told(
            UP,
            "(APIServer pid=7) INFO 11-30 07:10:02 [metrics.py:115] SpecDecoding metrics: Mean acceptance length: "
            "1.00, Accepted throughput: 0.00 tokens/s, Drafted throughput: 4.00 tokens/s, Accepted: 0 tokens, "
            "Drafted: 40 tokens, Avg Draft acceptance rate: 0.0%",
        ),
        "E10",
        ("speculative:", "qwen"),
    ),
    "drafts that grow and are never accepted": (
        told(UP, looks=[{**ALIVE, "drafted": 4000.0, "accepted": 0.0}] * 2),
        "E10",
        ("speculative:",),
    ),
    "LoRA rank 64 is greater than max_lora_rank 16": (
        told("(EngineCore_DP0 pid=3) ValueError: LoRA rank 64 is greater than max_lora_rank 16.", active="failed"),
        "E11",
        ('"--max-lora-rank", "64"',),
    ),
    "No adapter found for a path": (
        told(UP, "(APIServer pid=3) ERROR [api.py:9] Loading lora sql failed: No adapter found for /models/lora/sql"),
        "E11",
        ("/models/lora/sql on a, b",),
    ),
    "load endpoint 404": (
        told(UP, 'INFO:     10.0.0.9:1 - "POST /v1/load_lora_adapter HTTP/1.1" 404 Not Found'),
        "E11",
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING",),
    ),
    "OfflineModeIsEnabled": (
        told(
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/x: offline "
            "mode is enabled. To disable it, please unset the `HF_HUB_OFFLINE` environment variable.",
            active="failed",
        ),
        "E12",
        ("fleetctl weights push qwen", "HF_HOME"),
    ),
    "Cannot access gated repo": (
        told(
            "OSError: Cannot access gated repo for url https://huggingface.co/m/x/resolve/main/config.json.",
            active="failed",
        ),
        "E12",
        ("HF_TOKEN: {file: PATH}",),
    ),
    "no --shutdown-timeout": (
        told(CORE + "[core.py:1645] [shutdown] EngineCore: aborting in-flight requests count=4", STARTING, UP),
        "E13",
        ('"--shutdown-timeout", "50"',),
    ),
    "an open-files limit of 1024": (
        told(
            "(APIServer pid=6) WARNING 11-30 07:10:02 [system_utils.py:256] Found ulimit of 1024 and failed to "
            "automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors",
            UP,
        ),
        "E14",
        ("LimitNOFILE", "fleetctl-split-qwen.service"),
    ),
    "a queue inside the engine": (told(UP, *[FULL] * 8), "E15", ("fleetctl clients", "concurrency")),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_found_with_its_exact_fix(symptom: str) -> None:
    engine, code, words = SYMPTOMS[symptom]
    seen = found(engine)
    assert [finding.code for finding in seen] == [code], seen
    for word in words:
        assert word in seen[0].fix, seen[0].fix
    assert seen[0].box == "a" and seen[0].where == "fleetctl-split-qwen.service"
    assert seen[0].evidence


LOST = "[rank1]: Failed to recv, got 0 bytes. Connection was likely closed."
DYING = CORE + "RayWorkerProc rank=[1] died unexpectedly, shutting down executor."
NOTHING: dict[str, EngineTold] = {
    "nothing at all": told(),
    "an idle engine": told(UP, IDLE, HEALTH, IDLE, looks=[ALIVE] * 2),
    "a broadcast line once: slow compilation": told(UP, CORE + BROADCAST, HEALTH),
    "broadcast lines while something happens in between": told(
        *[CORE + BROADCAST, "(Worker_TP1 pid=515) [monitor.py:35] torch.compile takes 85.78 s in total"] * 9,
        active="activating",
        every=30,
    ),
    "broadcast lines of an engine that idles": told(UP, *[CORE + BROADCAST] * 9, looks=[{**ALIVE, "running": 0.0}] * 2),
    "broadcast lines of an engine that works": told(
        UP, *[CORE + BROADCAST] * 9, looks=[ALIVE, {**ALIVE, "tokens": 109.0}]
    ),
    "a head that has waited for ten seconds": told(
        "rank 0: waiting for rank [1] on 10.1.0.1", active="activating", ago=10
    ),
    "a head whose followers came": told(
        "rank 0: waiting for rank [1] on 10.1.0.1", "rank 0: rank 1 is here (b)", active="activating", ago=100
    ),
    "a head that loads for long": told(
        CORE + "Init torch distributed begin.", CORE + "Starting to load model...", active="activating", ago=500
    ),
    "lines from before the process that runs": told(DYING, UP, IDLE, began=NOW - 20),
    "lines from before the last good start of one that loads again": told(
        DYING, "Started fleetctl-split-qwen.service - fleetctl.", IDLE, STARTING, active="activating", restarts=2
    ),
    "a try before the last one, started by hand": told(DYING, STARTING, CORE + "loading", active="activating"),
    "a port that was busy, and then was not": told(
        "cannot listen on 10.1.0.1 port 29501 yet: Address already in use", UP
    ),
    "requests that wait for a moment": told(
        UP, looks=[{"running": 0.0, "waiting": 1.0, "tokens": 5.0}, {"running": 0.0, "waiting": 1.0, "tokens": 9.0}]
    ),
    "requests that wait for a running one": told(UP, looks=[{"running": 4.0, "waiting": 3.0, "tokens": 5.0}] * 2),
    "throughput lines of an hour ago": told(UP, HUNG, HUNG, HUNG, ago=3600),
    "hung once, busy now": told(UP, HUNG, HUNG, HUNG, FULL),
    "drafts that are accepted": told(UP, looks=[{**ALIVE, "drafted": 40000.0, "accepted": 26000.0}] * 2),
    "too few drafts to tell": told(UP, looks=[{**ALIVE, "drafted": 8.0, "accepted": 0.0}] * 2),
    "a short queue": told(UP, FULL, FULL),
    "a follower that is started anew with its head": told(STARTING, LOST, active="activating"),
    "a follower that somebody stopped": told(*[LOST] * 40, active="inactive"),
    "an engine that was stopped": told(UP, "[shutdown] API server: shutdown triggered", active="inactive"),
}


@pytest.mark.parametrize("story", NOTHING)
def test_nothing_is_found_where_nothing_is_wrong(story: str) -> None:
    assert found(NOTHING[story]) == []


def test_a_cause_is_told_and_not_what_follows_from_it() -> None:
    taken = "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE"
    seen = found(told(taken, DYING, active="activating", restarts=4))
    assert [finding.code for finding in seen] == ["E06"]


@pytest.mark.parametrize(
    ("who", "codes"),
    [
        ("other.service", []),  # the port and who has it are a finding about processes
        ("fleetctl-split-qwen.service", ["E06"]),
    ],
)
def test_a_port_whose_owner_can_be_seen_is_told_once_with_its_owner(who: str, codes: list[str]) -> None:
    live = layout("split")
    owner = ProcessFacts(pid=77, comm="python3", unit=who, engine=None)
    scene = Scene(office(), (live,), live, boxes_in(live, a={"ports": {29500: owner}}), {})
    unit = told("port: 29500, useIpv6: false, code: -98, name: EADDRINUSE", DYING, active="activating", restarts=4)
    one = EnginesTold(engines={"fleetctl-split-qwen.service": unit})
    assert [finding.code for finding in find(scene, {"a": one})] == codes
    of_processes = [finding.code for finding in processes(scene, {"a": ProcessesTold()})]
    assert of_processes == ([] if codes else ["P04"])


def test_a_head_that_says_for_hours_that_nobody_answers_is_told_once() -> None:
    waits = CORE + "[parallel_state.py:1823] Init torch distributed begin."
    seen = found(told(waits, *[CORE + BROADCAST] * 25, active="activating", every=60))
    assert [finding.code for finding in seen] == ["E04"]


def test_what_is_of_the_whole_engine_is_told_once() -> None:
    differ = told("rank 1: rank 1 (b) was given other settings (1) than the head (2)", active="failed")
    assert [finding.code for finding in found(differ, differ)] == ["E05"]


def test_silence_while_loading_is_first_a_note_and_then_an_error() -> None:
    def severity(lines: int) -> list[str]:
        return [finding.severity for finding in found(told(*[CORE + BROADCAST] * lines, active="activating", every=60))]

    assert severity(2) == []
    assert severity(5) == ["note"]
    assert severity(25) == ["error"]


def test_a_flag_that_is_in_the_file_is_not_asked_for() -> None:
    cut = told("[shutdown] EngineCore: aborting in-flight requests count=4", UP)
    assert found(cut, models__qwen__arguments=["--shutdown-timeout", "30"]) == []
    assert found(cut, models__qwen__arguments=["--shutdown_timeout=30"]) == []


def test_a_tool_that_is_called_in_the_text_is_found_when_the_engine_is_asked() -> None:
    parser = {"models__qwen__arguments": ["--enable-auto-tool-choice", "--tool-call-parser", "mistral"]}
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'

    def answered(**said: Any) -> list[Finding]:
        return found(told(UP, looks=[ALIVE] * 2).model_copy(update={"tool": ToolAnswer(**said)}), **parser)

    (finding,) = answered(status=200, text=text)
    assert finding.code == "E09" and "(mistral)" in finding.says and '"hermes"' in finding.fix
    assert answered(status=200, called=True) == answered(status=401) == answered(status=200) == []
    live = layout("split", **parser)
    asked = ask(Scene(office(**parser), (live,), live, boxes_in(live), {}), "a")
    assert asked == {"units": {"fleetctl-split-qwen.service": ["10.0.0.1", 8000, "qwen", True]}}


def test_refused_requests_are_laid_to_tools_only_where_the_engine_says_so() -> None:
    bad = told(UP, *['INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request'] * 7)
    assert found(bad) == []
    assert found(bad.model_copy(update={"tool": ToolAnswer(status=400)})) == []
    (finding,) = found(bad.model_copy(update={"tool": ToolAnswer(status=400, refused=True)}))
    assert finding.code == "E09" and "7 requests" in finding.says and "--enable-auto-tool-choice" in finding.fix


def test_a_lower_limit_of_the_engine_is_named_as_the_reason_of_its_queue() -> None:
    four = FULL.replace("Running: 12", "Running: 4")
    (finding,) = found(told(UP, *[four] * 8), models__qwen__arguments=["--max-num-seqs", "4"])
    assert "take --max-num-seqs out" in finding.fix


def test_a_copy_is_restarted_by_its_box() -> None:
    (finding,) = found(told(UP, looks=[{"running": 0.0, "waiting": 3.0, "tokens": 9.0}] * 2), of="replicas")
    assert "fleetctl restart a" in finding.fix


def test_what_clients_wrote_is_not_in_the_evidence() -> None:
    line = "Generated response: 'content': 'my secret plan <tool_call>\\n<function=get_weather>'"
    (finding,) = found(told(UP, line))
    assert "secret" not in " ".join(finding.evidence)
    assert "qwen3_coder" in finding.fix


def test_counters_are_read_from_any_version() -> None:
    old = 'vllm:num_requests_running{model_name="m"} 1.0\nvllm:prompt_tokens_total{model_name="m"} 3.0\n'
    two = (
        'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        'vllm:generation_tokens{engine="0"} 5\nvllm:spec_decode_num_draft_tokens_total{engine="0"} 40.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 0.0\nvllm:generation_tokens_created{engine="0"} 9\n'
    )
    assert counters(old) == {"running": 1.0, "tokens": 3.0}
    assert counters(two) == {"running": 3.0, "tokens": 5.0, "drafted": 40.0, "accepted": 0.0}
    assert counters("# nothing\nllamacpp:requests_processing 1\n") is None


def test_every_unit_of_the_live_layout_is_asked_and_the_head_where_it_answers() -> None:
    live = layout("split")
    scene = Scene(office(), (live,), live, boxes_in(live, b={"units": {}}), {})
    assert ask(scene, "a") == {"units": {"fleetctl-split-qwen.service": ["10.0.0.1", 8000, "qwen", False]}}
    assert ask(scene, "b") == {"units": {"fleetctl-split-qwen.service": None}}
    assert ask(Scene(office(), (), layout("split").model_copy(update={"engines": ()}), {}, {}), "a") is None
