"""Engines beside vLLM and SGLang are read in their own words: the llama.cpp server, TEI, infinity."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from planned import OFFICE

from fleetctl.engine.runtimes.flags import flag_values
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import SpecError
from fleetctl.importing.entries import entries
from fleetctl.importing.found import FoundModel
from fleetctl.importing.kind import Kind
from fleetctl.importing.kinds import detect, read
from fleetctl.importing.written import document, sections
from fleetctl.render.layout import render_layout
from fleetctl.spec.entries import with_entries
from fleetctl.spec.load import parse_fleet

OFFICE_TEXT = yaml.safe_dump(OFFICE, sort_keys=False)
LLAMA = "/opt/llama/llama-server -m /m/q.gguf"
TEI = "text-embeddings-router --model-id org/e"
INFINITY = "/opt/i/bin/infinity_emb v2 --model-id org/e"


def one(text: str, kind: Kind | None = None) -> FoundModel:
    (model,) = read("-", text, kind).models
    return model


def notes(text: str) -> str:
    return "\n".join(map(str, read("-", text).notes))


def rendered(text: str) -> dict[str, str]:
    """Flags of the engine's command, as a fleet starts it that the entries were put into."""
    made = entries(read("-", text), parse_fleet(OFFICE_TEXT, "fleet.yaml"))
    fleet = parse_fleet(with_entries(OFFICE_TEXT, sections(made)), "fleet.yaml")
    (name,) = made.models
    release = render_layout(fleet, made.layout)
    rank = next(one for one in release.engines if one.model == name).ranks[0]
    unit = next(file.content for file in release.files[rank.box] if file.path.endswith(f"/{rank.unit}"))
    (start,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    return flag_values(shlex.split(start), RUNTIMES[made.models[name].runtime].aliases)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("-c 32768 -np 4", {"--ctx-size": "32768", "--parallel": "4"}),
        ("-c 32768 -np 1", {"--ctx-size": "32768", "--parallel": "1"}),
        ("-c 32768", {"--ctx-size": "32768", "--parallel": "4", "--kv-unified": ""}),
        ("-c 32768 -np -1", {"--ctx-size": "32768", "--parallel": "4", "--kv-unified": ""}),
        ("-c 32768 -np 8 -kvu", {"--ctx-size": "32768", "--parallel": "8", "--kv-unified": ""}),
        ("-ctk q8_0 -ctv q8_0", {"--cache-type-k": "q8_0", "--cache-type-v": "q8_0"}),
        ("-ctk q8_0 -ctv q4_0", {"--cache-type-k": "q8_0", "--cache-type-v": "q4_0"}),
        ("-ctk q8_0", {"--cache-type-k": "q8_0"}),
        ("--embedding -c 8192 -np 4 -ub 4096", {"--embeddings": "", "--ctx-size": "8192", "--ubatch-size": "4096"}),
        ("--rerank --port 9000", {"--reranking": "", "--port": "9000"}),
        ("--embedding --pooling rank", {"--reranking": "", "--pooling": "rank"}),
        ("-a one,two", {"--alias": "one,two"}),
        ("--no-mmap --lora a.gguf --lora b.gguf", {"--mmap": "no", "--lora": "b.gguf"}),
    ],
)
def test_llama_cpp_is_started_with_the_cache_and_the_slots_that_it_had(flags: str, told: dict[str, str]) -> None:
    found = rendered(f"{LLAMA} {flags}")
    assert {name: found.get(name) for name in told} == told
    assert ("--kv-unified" in found) == ("--kv-unified" in told)


def test_what_each_request_of_llama_cpp_has_room_for_is_its_part_of_the_cache() -> None:
    model = one(f"{LLAMA} --ctx-size 10000 --parallel 3")
    assert (model.settings["context"].value, model.concurrency) == (3333, 3)
    assert "divided by --parallel 3" in model.settings["context"].remark
    assert one(f"{LLAMA} -c 0 -np 2").settings["context"].assumed, "0 is what the model has"
    assert one(f"{LLAMA} -c 2 -np 4").settings["context"].assumed


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        (LLAMA, {"program": "/opt/llama/llama-server"}),
        ("llama-server -m /m/q.gguf", {"program": "/usr/local/bin/llama-server"}),
        ("./build/bin/llama-server -m /m/q.gguf", {"program": "/usr/local/bin/llama-server"}),
        ("/opt/x/bin/llama-server -m /m/q.gguf", {"program": "/opt/x/bin/llama-server"}),
        ("numactl -N 0 /opt/x/bin/llama-server -m /m/q.gguf", {"program": "/opt/x/bin/llama-server"}),
        (f"A=1 exec sudo {TEI}", {"program": "/usr/local/bin/text-embeddings-router"}),
        (INFINITY, {"venv": "/opt/i"}),
        ("/opt/i/bin/python3 /opt/i/bin/infinity_emb v1 --model-name-or-path org/e", {"venv": "/opt/i"}),
        ("infinity_emb v2 --model-id org/e", {"venv": "/opt/infinity"}),
        ("docker run --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda -m /m/q.gguf",
         {"image": "ghcr.io/ggml-org/llama.cpp:server-cuda", "options": ["--gpus=all"]}),
        ("docker run --runtime nvidia ghcr.io/ggml-org/llama.cpp:full-cuda --server -m /m/q.gguf",
         {"image": "ghcr.io/ggml-org/llama.cpp:full-cuda", "options": ["--runtime=nvidia"]}),
        ("docker run -e LLAMA_ARG_MODEL=/m/q.gguf ghcr.io/ggml-org/llama.cpp:server",
         {"image": "ghcr.io/ggml-org/llama.cpp:server", "gpus": "none"}),
        ("podman run --entrypoint /app/llama-server mine:1 -m /m/q.gguf",
         {"image": "mine:1", "engine": "podman", "gpus": "none"}),
        ("docker run --log-driver none --gpus 1 michaelf34/infinity:latest v2 --model-id org/e",
         {"image": "michaelf34/infinity:latest", "options": ["--gpus=1"]}),
        ("docker run -v /c:/data ghcr.io/huggingface/text-embeddings-inference:cpu-1.9 --model-id org/e",
         {"image": "ghcr.io/huggingface/text-embeddings-inference:cpu-1.9", "gpus": "none",
          "options": ["--volume=/c:/data"]}),
        ("docker run mine/tei sh -c 'text-embeddings-router --model-id org/e'", {"image": "mine/tei", "gpus": "none"}),
    ],
)  # fmt: skip
def test_what_an_engine_is_launched_from_is_seen(command: str, launch: dict[str, object]) -> None:
    assert detect("-", command) is Kind.COMMAND
    assert one(command).settings["launch"].value == launch


@pytest.mark.parametrize(
    ("command", "port"),
    [
        (LLAMA, 8080),
        (TEI, 3000),
        (INFINITY, 7997),
        (f"PORT=9000 {TEI}", 9000),
        (f"PORT=9000 {TEI} -p 9001", 9001),
        (f"INFINITY_PORT=9000 {INFINITY}", 9000),
        ("docker run ghcr.io/huggingface/text-embeddings-inference:1.9 --model-id e", 80),
        ("docker run -p 9000:80 ghcr.io/huggingface/text-embeddings-inference:1.9 --model-id e", 9000),
        ("docker run -p 9000:8080 ghcr.io/ggml-org/llama.cpp:server -m /q.gguf", 9000),
        ("docker run -p 9000:1234 ghcr.io/ggml-org/llama.cpp:server -m /q.gguf --port 1234", 9000),
        ("docker run -p 9000:7997 michaelf34/infinity:1 v2 --model-id e", 9000),
        ("docker run -p 9000:30000 lmsysorg/sglang python3 -m sglang.launch_server --model-path e", 9000),
    ],
)
def test_an_engine_keeps_the_port_at_which_it_was_reached(command: str, port: int) -> None:
    assert one(command).port == port


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (f"{LLAMA} --alias chat", None),
        (LLAMA, ["q.gguf"]),
        ("llama-server -hf org/Q-GGUF:Q8_0", ["org/Q-GGUF:Q8_0"]),
        ("docker run -v /srv:/models ghcr.io/ggml-org/llama.cpp:server -m /models/q.gguf", ["q.gguf"]),
        (TEI, ["org/e"]),
        ("/opt/i/bin/infinity_emb v2 --model-id /m/a/b", ["a/b"]),
        (f"{INFINITY} --served-model-name e", None),
        ("docker run -v /srv:/m vllm/vllm-openai --model /m/q", ["/m/q"]),
    ],
)
def test_clients_ask_for_the_names_that_they_asked_for(command: str, names: list[str] | None) -> None:
    served = one(command).settings.get("served_as")
    assert (served.value if served is not None else None) == names


def test_a_folder_of_the_container_stays_where_more_than_the_weights_is_read_from_it() -> None:
    run = "docker run --gpus all -v /srv:/models ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/q.gguf"
    alone, together = one(run), one(f"{run} --mmproj /models/p.gguf")
    assert alone.settings["weights"].value == together.settings["weights"].value == "/srv/q.gguf"
    assert together.settings["launch"].value["options"] == ["--gpus=all", "--volume=/srv:/models"]  # type: ignore[index,call-overload]
    assert alone.settings["launch"].value["options"] == ["--gpus=all"]  # type: ignore[index,call-overload]


def test_variables_say_what_flags_do_and_are_no_variables_of_the_engine_afterwards() -> None:
    text = "LLAMA_ARG_CTX_SIZE=8192 LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_EMBEDDINGS=0 LLAMA_ARG_HOST=:: LLAMA_ARG_JINJA=1 "
    model = one(f"{text}{LLAMA} -c 4096")
    assert (model.settings["context"].value, model.concurrency) == (2048, 2)
    assert "task" not in model.settings
    assert {name: setting.value for name, setting in model.environment.items()} == {"LLAMA_ARG_JINJA": "1"}


def test_a_container_has_the_variables_that_it_is_given_and_no_others() -> None:
    run = "docker run -p 9000:80 -e A -e B=2 x/text-embeddings-inference --model-id org/e"
    for text in (f"A=1 PORT=81 C=3 {run}", f"[Service]\nEnvironment=A=1 PORT=81 C=3\nExecStart=/usr/bin/{run}\n"):
        model = one(text)
        assert {name: setting.value for name, setting in model.environment.items()} == {"A": "1", "B": "2"}
        assert model.port == 9000


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{LLAMA} extra", "1: 'extra' is one word too many: --model has its value"),
        ("llama-server extra -m /m/q.gguf", "1: 'extra' is one word too many: it belongs to no flag"),
        ("llama-server -m /m/blob", "is given a .gguf file"),
        ("llama-server -m models/q.gguf", "/models/q.gguf is assumed"),
        ("llama-server -c 8", "no model is named"),
        (f"{LLAMA} --models-dir /m", "--models-dir is left out: an engine of fleetctl serves one model"),
        (f"{LLAMA} --ssl-cert-file x", "--ssl-cert-file is left out"),
        (f"{LLAMA} --api-key-file /etc/keys", "--api-key-file is left out: the proxy checks"),
        (f"{LLAMA} -a 'a b,c'", "clients' name 'a b' is left out"),
        (f"{INFINITY} --model-id org/f", "--model-id is there more than once"),
        (f"{INFINITY} --url-prefix /api", "begin with /v1"),
        (f"{TEI} --port $PORT", "--port $PORT"),
        (f"{LLAMA}\ndocker run ghcr.io/ggml-org/llama.cpp:light -m /m/q.gguf -p hello", ""),
        (f"{LLAMA}\ndocker run ghcr.io/huggingface/text-generation-inference:3 --model-id e", "TGI is started here"),
        (f"{LLAMA}\npython -m llama_cpp.server --model /m/q.gguf", "llama-cpp-python is started here"),
    ],
)
def test_what_was_not_understood_is_said(command: str, said: str) -> None:
    assert said in notes(command)
    one(command)


@pytest.mark.parametrize(
    "text", ["nginx -g 'daemon off;'", "mine:1 --debug", "ghcr.io/ggml-org/llama.cpp:full --convert"]
)
def test_a_container_with_something_else_in_it_is_no_engine(text: str) -> None:
    assert [model.runtime for model in read("-", f"{LLAMA}\ndocker run {text}").models] == ["llama.cpp"]


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "text-embeddings-inference", "infinity"])
def test_a_quantisation_is_part_of_a_hub_id_for_llama_cpp_alone(runtime: str) -> None:
    made = entries(read("-", "llama-server -hf org/Q:Q8_0 -c 8 -np 1"))
    told = with_entries(OFFICE_TEXT, sections(made))
    assert parse_fleet(told, "f").models["q-q8-0"].weights == "org/Q:Q8_0"
    with pytest.raises(SpecError, match="neither a path on the boxes nor a hub id"):
        parse_fleet(told.replace("runtime: llama.cpp", f"runtime: {runtime}"), "f")


def test_the_entries_of_a_compose_file_stand_beside_each_other() -> None:
    text = "services:\n  a: {build: ., command: llama-server -m /m/q.gguf}\n"
    text += "  b: {image: 'x/text-embeddings-inference@sha256:0', environment: {MODEL_ID: org/e}}\n"
    text += "  c: {image: michaelf34/infinity, command: [v2, --model-id, org/e, --api-key, sk-0123456789abcdef]}\n"
    found = read("compose.yaml", text)
    assert [model.runtime for model in found.models] == ["llama.cpp", "text-embeddings-inference", "infinity"]
    assert "ghcr.io/ggml-org/llama.cpp:server-cuda is assumed" in "\n".join(map(str, found.notes))
    assert "0123456789" not in document(entries(found), "compose.yaml") + "\n".join(map(str, found.notes))
