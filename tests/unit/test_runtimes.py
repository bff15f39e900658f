"""Each kind of engine is started in its own words, refuses what it cannot do, and tells its models and figures."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.engine.runtimes.command import engine_words, served_names, task_of
from fleetctl.engine.runtimes.flags import flag_values
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.engine.runtimes.runtime import Ask, RankOfMany
from fleetctl.errors import SpecError
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Engine, File
from fleetctl.spec.fleet_model import Model
from fleetctl.spec.load import parse_fleet
from fleetctl.watch.reading import read

LLAMA = {"weights": "/models/tiny.gguf", "launch": {"program": "/opt/llama-server"}}
ENCODER = {"weights": "org/encoder", "launch": {"venv": "/opt/encoders"}}


def ask(
    runtime: str, *, split: RankOfMany | None = None, cache: int | None = None, socket: str = "", **model: Any
) -> list[str]:
    values = {"weights": "/models/chat", "context": 8192, "launch": {"venv": "/opt/engine"}, "runtime": runtime}
    made = Model.model_validate({**values, **model})
    kind = RUNTIMES[runtime]
    return engine_words(
        kind,
        Ask(
            "chat",
            made,
            task_of(kind, "chat", made),
            served_names("chat", made),
            host="10.0.0.1",
            port=8000,
            concurrency=12,
            share=0.8,
            cache=cache,
            split=split,
            socket=socket,
            extra=(made.arguments,),
        ),
    )


def values(runtime: str, **more: Any) -> dict[str, str]:
    return flag_values(ask(runtime, **more), RUNTIMES[runtime].aliases)


WORDS = [
    ("sglang", {}, {"--model-path": "/models/chat", "--served-model-name": "chat", "--context-length": "8192"}),
    ("sglang", {}, {"--max-running-requests": "12", "--mem-fraction-static": "0.704", "--enable-metrics": ""}),
    ("sglang", {"kv_cache_dtype": "fp8"}, {"--kv-cache-dtype": "fp8_e4m3"}),
    ("sglang", {"task": "embed"}, {"--is-embedding": ""}),
    (
        "sglang",
        {"speculative": {"method": "mtp", "num_speculative_tokens": 4}},
        {"--speculative-algorithm": "NEXTN", "--speculative-num-steps": "4", "--speculative-num-draft-tokens": "5"},
    ),
    ("sglang", {"arguments": ["--mem-fraction-static", "0.6"]}, {"--mem-fraction-static": "0.6"}),
    ("llama.cpp", {**LLAMA, "served_as": ["a", "b"]}, {"--model": "/models/tiny.gguf", "--alias": "a,b"}),
    ("llama.cpp", LLAMA, {"--ctx-size": str(12 * 8192), "--parallel": "12", "--metrics": ""}),
    ("llama.cpp", {**LLAMA, "kv_cache_dtype": "q8_0"}, {"--cache-type-k": "q8_0", "--cache-type-v": "q8_0"}),
    ("llama.cpp", {**LLAMA, "task": "embed"}, {"--embeddings": "", "--ubatch-size": "8192"}),
    ("llama.cpp", {**LLAMA, "arguments": ["-c", "4096", "--no-host"]}, {"--ctx-size": "4096", "--host": "10.0.0.1"}),
    ("llama.cpp", {**LLAMA, "weights": "org/tiny-GGUF"}, {"--hf-repo": "org/tiny-GGUF"}),
    ("text-embeddings-inference", ENCODER, {"--model-id": "org/encoder", "--hostname": "10.0.0.1", "--port": "8000"}),
    ("text-embeddings-inference", {**ENCODER, "context": 32768}, {"--max-batch-tokens": "32768"}),
    ("infinity", {**ENCODER, "revision": "abc"}, {"--model-id": "org/encoder", "--url-prefix": "/v1"}),
    ("vllm", {"task": "embed"}, {"--runner": "pooling"}),
]


@pytest.mark.parametrize(("runtime", "model", "wanted"), WORDS)
def test_keys_of_the_file_become_the_flags_of_the_engine(
    runtime: str, model: dict[str, Any], wanted: dict[str, str]
) -> None:
    found = values(runtime, **model)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_engine_that_can_listens_on_a_socket_in_place_of_its_port(runtime: str) -> None:
    path = "/run/engine.sock"
    told = {"vllm": {"--uds": path}, "encoder": {"--uds": path}, "llama.cpp": {"--host": path}}.get(runtime)
    model: dict[str, Any] = {"llama.cpp": LLAMA, "encoder": {**ENCODER, "weights": "/models/encoder"}}.get(runtime, {})
    given = values(runtime, socket=path, **model)
    assert RUNTIMES[runtime].sockets == (told is not None)
    assert (given.items() >= told.items() and "--port" not in given) if told else path not in given.values()
    assert values(runtime, **model)["--port"] == "8000"


@pytest.mark.parametrize(
    ("runtime", "launch", "address"),
    [
        ("vllm", "image: vllm/vllm-openai:v1", "unix:/run/fleetctl/one-m/engine.sock"),
        ("sglang", "venv: /opt/sgl", "127.0.0.1"),
    ],
)
def test_in_a_pool_the_unit_has_a_folder_for_the_socket_and_a_container_sees_it(
    runtime: str, launch: str, address: str
) -> None:
    passwords = "{gateway: {env: G}, worker: {env: W}, operator: {env: O}}"
    text = (
        "fleet: office\nboxes:\n  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}\n"
        f"models:\n  m: {{runtime: {runtime}, weights: /m, context: 512, launch: {{{launch}}}}}\n"
        "layouts:\n  one:\n    m: {pool: [a], memory: 10GiB}\nproxy: {box: a}\n"
        f"pool: {{nats: {{boxes: [a], store: 1GiB, passwords: {passwords}}}}}\n"
    )
    release = render_layout(parse_fleet(text, "fleet.yaml"), "one")
    (engine,) = release.all_engines
    (unit,) = [file.content for file in release.files["a"] if file.path.endswith("/fleetctl-one-m.service")]
    assert engine.address == address
    if runtime == "vllm":
        folder = "/run/fleetctl/one-m"
        assert (engine.port, engine.listens, engine.url) == (0, {}, "http://localhost")
        assert "RuntimeDirectory=fleetctl/one-m\nRuntimeDirectoryMode=0700\n" in unit
        assert f"--mount type=bind,source={folder},target={folder} " in unit
    else:
        assert (engine.port, engine.url, "RuntimeDirectory" in unit) == (8000, "http://127.0.0.1:8000", False)


def test_sglang_is_split_by_its_own_flags() -> None:
    split = RankOfMany(1, 2, "pipeline", "fd00::1", 29500)
    words = " ".join(ask("sglang", split=split))
    assert "--pp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr [fd00::1]:29500" in words


CANNOT = [
    ("llama.cpp", {"launch": {"venv": "/x"}}, {}, "reads one .gguf file"),
    ("llama.cpp", {**LLAMA, "speculative": {"method": "mtp", "num_speculative_tokens": 2}}, {}, "its own flags"),
    ("llama.cpp", LLAMA, {"cache": 5}, "kv_cache_memory"),
    ("llama.cpp", {**LLAMA, "weights": "org/x", "revision": "a"}, {}, "a revision"),
    ("sglang", {"served_as": ["a", "b"]}, {}, "under one name"),
    ("sglang", {}, {"cache": 5}, "kv_cache_memory"),
    ("sglang", {"speculative": {"method": "mtp", "num_speculative_tokens": 2, "x": 1}}, {}, "no one flag for x"),
    ("infinity", {**ENCODER, "kv_cache_dtype": "fp8"}, {}, "no use for kv_cache_dtype"),
    ("infinity", {**ENCODER, "task": "generate"}, {}, "infinity cannot generate"),
    ("text-embeddings-inference", {**ENCODER, "served_as": ["a", "b"]}, {}, "under one name"),
    ("infinity", {**ENCODER, "arguments": ["--url-prefix", "/x"]}, {}, "--url-prefix is set by fleetctl"),
    ("vllm", {"arguments": ["--port", "1"]}, {}, "--port is set by fleetctl"),
]


@pytest.mark.parametrize(("runtime", "model", "more", "said"), CANNOT)
def test_what_an_engine_cannot_do_is_refused(
    runtime: str, model: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as refused:
        ask(runtime, **{"weights": "/models/chat", **model}, **more)
    assert said in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("runtime", [name for name, one in RUNTIMES.items() if not one.splits])
def test_only_vllm_and_sglang_are_split_over_boxes(runtime: str) -> None:
    model = LLAMA if runtime == "llama.cpp" else ENCODER
    with pytest.raises(SpecError, match="cannot be split over boxes"):
        ask(runtime, split=RankOfMany(0, 2, "tensor", "10.0.0.1", 29500), **model)


LISTS = [
    ("vllm", {"data": [{"id": name, "max_model_len": 8192} for name in ("a", "b")]}, {"a": 8192, "b": 8192}),
    ("sglang", {"data": [{"id": "a", "max_model_len": 4096}]}, {"a": 4096}),
    ("llama.cpp", {"data": [{"id": "a", "aliases": ["a", "b"], "meta": {"n_ctx": 512}}]}, {"a": 512, "b": 512}),
    ("llama.cpp", {"data": [{"id": "/models/x.gguf"}]}, {"/models/x.gguf": None}),
    ("text-embeddings-inference", {"served_model_name": "a", "max_input_length": 512}, {"a": 512}),
    ("infinity", {"data": [{"id": "a", "stats": {}}]}, {"a": None}),
]


@pytest.mark.parametrize(("runtime", "body", "wanted"), LISTS)
def test_an_engine_tells_its_names_and_its_longest_request(
    runtime: str, body: Any, wanted: dict[str, int | None]
) -> None:
    assert RUNTIMES[runtime].models.read(body) == wanted


PAGES = [
    (
        'sglang:num_running_reqs{model_name="a",tp_rank="0"} 3.0\nsglang:num_queue_reqs{model_name="a"} 2.0\n'
        'sglang:prompt_tokens_total{model_name="a"} 50\nsglang:token_usage{model_name="a",tp_rank="0"} 0.5',
        {"running": 3, "waiting": 2, "cache_usage": 0.5},
        {"prompt_tokens": 50, "prefix_queries": 50},
    ),
    (
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 4",
        {"running": 1, "waiting": 0},
        {"generation_tokens": 4},
    ),
    (
        'te_queue_size 2\nte_request_success{method="single"} 3\nte_request_success{method="batch"} 4\n'
        "te_request_input_length_sum 90",
        {"running": None, "waiting": 2},
        {"requests": 7, "prompt_tokens": 90},
    ),
    (
        'http_requests_total{handler="/health",method="GET",status="2xx"} 900\n'
        'http_requests_total{handler="/v1/embeddings",method="POST",status="2xx"} 5',
        {"running": None},
        {"requests": 5},
    ),
]


@pytest.mark.parametrize(("page", "gauges", "counters"), PAGES, ids=["sglang", "llama.cpp", "router", "infinity"])
def test_figures_are_read_under_the_names_of_each_engine(
    page: str, gauges: dict[str, float | None], counters: dict[str, float]
) -> None:
    seen = read(page)
    assert {name: getattr(seen, name) for name in gauges} == gauges
    assert dict(seen.counters) == counters
    assert not seen.empty


def layout(models: str, placed: str) -> tuple[list[Engine], dict[str, File]]:
    boxes = "boxes:\n  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}\n"
    text = f"fleet: office\n{boxes}models:\n{models}layouts:\n  one:\n{placed}proxy: {{box: a}}\n"
    release = render_layout(parse_fleet(text, "fleet.yaml"), "one")
    return list(release.engines), {file.path: file for file in release.files["a"]}


ROUTER = (
    "  v: {runtime: text-embeddings-inference, weights: org/v, context: 512, "
    "launch: {program: /usr/local/bin/text-embeddings-router}}\n"
)


def test_a_program_is_started_as_it_is_and_is_proved_by_vectors() -> None:
    engines, files = layout(ROUTER, "    v: {copies: [a]}\n")
    assert (engines[0].runtime, engines[0].task) == ("text-embeddings-inference", "embed")
    assert engines[0].binary == "/usr/local/bin/text-embeddings-router"
    unit = files["/etc/systemd/system/fleetctl-one-v.service"].content
    assert "ExecStart=/usr/local/bin/text-embeddings-router --model-id org/v" in unit
    config = files["/etc/fleetctl/proxy/haproxy.cfg"].content
    assert "setenv path_v '/v1/embeddings'" in config
    assert """setenv question_v '{"model": "v", "input": "Hello"}'""" in config
    assert "path /v1/models" in config, "the router has no list of models: the proxy answers for it"


def test_sglang_is_started_by_the_python_of_its_venv_with_a_cheap_health() -> None:
    model = "  c: {runtime: sglang, weights: /m, context: 512, launch: {venv: /opt/sgl}}\n"
    engines, files = layout(model, "    c: {copies: [a]}\n")
    assert engines[0].binary == "/opt/sgl/bin/python"
    unit = files["/etc/systemd/system/fleetctl-one-c.service"].content
    assert "ExecStart=/opt/sgl/bin/python -m sglang.launch_server --model-path /m" in unit
    assert "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false" in unit


def test_models_that_share_a_name_have_to_answer_the_same_questions() -> None:
    other = "  w: {served_as: [v], weights: /m, context: 512, launch: {venv: /opt/vllm}}\n"
    text = (
        "fleet: office\nboxes:\n  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}\n"
        f"models:\n{ROUTER}{other}layouts:\n  one:\n    v: {{copies: [a]}}\n  two:\n    w: {{copies: [a]}}\n"
        "proxy: {box: a}\n"
    )
    with pytest.raises(SpecError, match="do not answer the same questions"):
        render_layout(parse_fleet(text, "fleet.yaml"), "one")
