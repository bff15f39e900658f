"""Files that nobody means well with, or that went wrong: import says what is the matter soon, and repeats no secret."""

from __future__ import annotations

import time

import pytest
import yaml

from fleetctl.errors import SpecError
from fleetctl.importing.entries import entries
from fleetctl.importing.kind import Kind
from fleetctl.importing.kinds import read
from fleetctl.importing.written import document, sections
from fleetctl.spec.entries import with_entries
from fleetctl.spec.load import parse_fleet

SOON = 8.0  # seconds of this process
SERVE = "vllm serve org/m"
UNIT = "[Service]\nExecStart=/opt/v/bin/vllm serve org/m\n"


def all_said(text: str, kind: Kind | None = None) -> str:
    """The entries with and without boxes, and every note; or the message that refuses the file."""
    try:
        found = read("x", text, kind)
        made = entries(found, boxes=["a", "b"])
        notes = "\n".join(map(str, made.notes))
        placed = document(made, "x")
        yaml.safe_load(placed)
        return placed + notes + document(entries(found), "x")
    except SpecError as error:
        return f"{error.message}\n{error.hint}"


def doubling(levels: int) -> str:
    """Lines of YAML in which each value is the one before, nine times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (doubling(11) + "\nservices: {v: {image: vllm/vllm-openai, command: *a10}}\n", None, "aliases repeat"),
        ("a: &a\n  b: *a\nservices: {v: *a}\n", None, "levels inside each other"),
        ("services: " + "[" * 5000 + "]" * 5000, None, "not valid YAML"),
        ("A=xx\n" + "A=$A$A\n" * 40 + "vllm serve $A\n", Kind.COMMAND, "A has more than 65,536 characters"),
        (f"{SERVE}\n" * 20_000, Kind.COMMAND, "more than 100 engines"),
        (SERVE + " --x y" * 100_000, Kind.COMMAND, "more than 2,000 words"),
        ("# x\n" * 200_000 + SERVE, Kind.COMMAND, "weights: org/m"),
        ("\\a" * 300_000 + f"\n{SERVE}", Kind.COMMAND, "…"),
        ("x" * (1 << 20) + SERVE, None, "more than 1,048,576 characters"),
        (f"{SERVE} -tp 99999999999 -pp 99999999999", Kind.COMMAND, "are more than 64 boxes"),
        (f"{SERVE} --speculative-config '" + '{"a":' * 3000 + "1" + "}" * 3000 + "'", Kind.COMMAND, "is no JSON"),
        (f"{SERVE} --max-model-len {'9' * 5000}", Kind.COMMAND, "no whole number"),
        (f"llama-server -m /m/q.gguf -c {'9' * 5000}", Kind.COMMAND, "no whole number"),
        ("llama-server -m /m/q.gguf -c 8192 -np 0", Kind.COMMAND, "no whole number"),
        ("llama-server -m /m/q.gguf -np 999999999999 -c 8", Kind.COMMAND, "less than a token for each request"),
        ("llama-server -m " + "/m" * 50_000 + ".gguf", Kind.COMMAND, "weights: /m/m"),
        ("llama-server -m /m/q.gguf -a " + "a," * 50_000, Kind.COMMAND, "weights: /m/q.gguf"),
        ("infinity_emb v2" + " --model-id org/e" * 900, Kind.COMMAND, "--model-id is there more than once"),
        ("INFINITY_MODEL_ID='" + "org/e;" * 9000 + "' infinity_emb v2", Kind.COMMAND, "more than once"),
        ("text-embeddings-router --model-id org/e --port 99999999", Kind.COMMAND, "99999999 is no port"),
        ("docker run llama.cpp:server " + "--" * 9000, Kind.COMMAND, "no model is named"),
        (f"{UNIT}TimeoutStartSec=1.2.3\n", None, "TimeoutStartSec=1.2.3 is left out"),
        (f"{UNIT}TimeoutStartSec=.\n", None, "TimeoutStartSec=. is left out"),
        (f"{UNIT}TimeoutStartSec=99999999999999999999\n", None, "is left out"),
        (f"{UNIT}TimeoutStartSec=1234567\n", None, "load_limit: 1234567s"),
        (
            "model: org/m\nruntime: vllm\ndefaults: {"
            + ", ".join(f"a{at}: '{f'{{a{at + 1}}}' * 50}'" for at in range(6))
            + "}\ncommand: 'vllm serve {model} --x {a0}'\n",
            Kind.SPARKRUN,
            "without end",
        ),
    ],
)  # fmt: skip
def test_a_file_that_grows_without_end_or_has_nonsense_in_it_is_answered_soon_and_in_words(
    text: str, kind: Kind | None, said: str
) -> None:
    began = time.process_time()
    assert said in all_said(text, kind)
    assert time.process_time() - began < SOON


SECRET = "Hunter2Hunter2"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"curl -H 'Authorization: Bearer {SECRET}' http://x\n{SERVE}", None),
        (f"export T=$(cat {SECRET})\n{SERVE}", None),
        (f"mysql -uroot -p{SECRET}\n{SERVE}", None),
        (f"sshpass -p {SECRET} ssh box {SERVE}", None),
        (f"HTTPS_PROXY=http://me:{SECRET}@proxy:3128 {SERVE}", None),
        (f"docker run -e HTTPS_PROXY=http://me:{SECRET}@proxy:3128 vllm/vllm-openai --model org/m", None),
        (f"docker run -e DB_PASS={SECRET} -e OPENAI_KEY={SECRET} vllm/vllm-openai --model org/m", None),
        (f"docker run --annotation=password={SECRET} vllm/vllm-openai --model org/m", None),
        (f"vllm serve https://me:{SECRET}@host/org/m", None),
        (f'{SERVE} --hf-overrides \'{{"token": "{SECRET}"}}\'', None),
        (f"{SERVE} --otlp-headers 'Authorization=Bearer {SECRET}'", None),
        (f'{UNIT}Environment="HTTP_PROXY=http://me:{SECRET}@proxy:3128"\n', None),
        (
            f"services:\n  v:\n    image: vllm/vllm-openai\n    command: --model org/m --api-key {SECRET}\n"
            f"    environment: [HF_TOKEN={SECRET}, 'A B={SECRET}']\n    labels: {{a: {SECRET}}}\n"
            f"    healthcheck: {{test: {SECRET}}}\n    build: {{args: {{T: {SECRET}}}}}\n",
            Kind.COMPOSE,
        ),
        (f"model: org/m\nruntime: vllm\nenv: {{HF_TOKEN: {SECRET}}}\ncommand: |\n  login {SECRET}\n  {SERVE}\n", None),
        (f"model: org/m\nruntime: vllm\ndefaults: {{api_key: {SECRET}}}\n", Kind.SPARKRUN),
        (f"llama-server -m /m/q.gguf --api-key {SECRET} -hft {SECRET} --hf-token {SECRET}", None),
        (f"LLAMA_API_KEY={SECRET} llama-server -mu https://me:{SECRET}@host/q.gguf", None),
        (f"llama-server -m https://me:{SECRET}@host/q.gguf -a 'token: {SECRET}'", None),
        (f"llama-server -m /m/q.gguf 'token={SECRET}' --port 'password={SECRET}'", None),
        (f"docker run -e API_KEY={SECRET} x/text-embeddings-inference:1 --model-id e --hf-api-token {SECRET}", None),
        (f"docker run -e MODEL_ID=https://me:{SECRET}@host/e x/text-embeddings-inference:1", None),
        (f"INFINITY_API_KEY={SECRET} infinity_emb v2 --model-id e --api-key {SECRET}", None),
        (f"{UNIT.replace('vllm serve org/m', 'llama-server -m /m/q.gguf')}Environment=LLAMA_API_KEY={SECRET}\n", None),
        (f"upstream a {{ server me:{SECRET}@host:80; }}", Kind.NGINX),
        (f"backend b\n  http-request set-header Authorization {SECRET}\n  server a 10.0.0.1:80\n", None),
    ],
)
def test_no_output_has_a_secret_of_the_file(text: str, kind: Kind | None) -> None:
    assert SECRET not in all_said(text, kind)


@pytest.mark.parametrize(
    "word", ["bos_token=x", "http://host:8000/v1", "stop_token_ids: [1]", "KEYS", "user@host:path", "tokens: 5"]
)
def test_what_only_looks_a_little_like_a_secret_stays(word: str) -> None:
    assert word in all_said(f"{SERVE} --note '{word}'")


FLEET = """\
fleet: f
boxes: {a: {address: 10.0.0.1, memory: 128GiB, reserve: 16GiB}}
proxy: {box: a}
models:
  qwen: {weights: /m, context: 8192, launch: {venv: /opt/v}}
layouts:
  r: {qwen: {copies: [a]}}
"""


@pytest.mark.parametrize("name", ["on", "no", "null", "123", "0x1f", "1e3", "2026-11-30", "true", "7b", "y"])
def test_a_model_that_is_called_like_another_thing_of_yaml_can_be_written(name: str) -> None:
    made = entries(read("x", f"vllm serve org/{name}", Kind.COMMAND), parse_fleet(FLEET, "x"))
    fleet = parse_fleet(with_entries(FLEET, sections(made)), "x")
    assert f"org/{name}" in [model.weights for model in fleet.models.values()]


@pytest.mark.parametrize("mark", ["\n", "\r", "\x85", "\u2028", "\u2029"], ids=ascii)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_value_with_a_line_break_stays_on_its_line(mark: str, end: str) -> None:
    text = FLEET.replace("\n", end)
    made = entries(read("x", f"{SERVE} --x 'a{mark}evil: 1' --y z", Kind.COMMAND), parse_fleet(text, "x"))
    edited = with_entries(text, sections(made))
    assert parse_fleet(edited, "x").models["m"].arguments == ("--x", f"a{mark}evil: 1", "--y", "z")
    assert edited.count("\n") == edited.count(end)


@pytest.mark.parametrize("name", ["a:b", "x\ny", "A", "", "-a", "a" * 32, "{a}"])
def test_boxes_and_layouts_are_called_as_fleet_yaml_can_have_them(name: str) -> None:
    found = read("x", SERVE, Kind.COMMAND)
    with pytest.raises(SpecError, match=r"--layout: .* is no name"):
        entries(found, layout=name)
    with pytest.raises(SpecError, match=r"--boxes: .* is no name"):
        entries(found, boxes=[name])


@pytest.mark.parametrize("name", ["1", "on", "null", "0x10", "1e3", "A_1", "___"])
def test_a_server_that_is_called_like_another_thing_of_yaml_is_a_box(name: str) -> None:
    found = read("x", f"backend b\n  server {name} 10.0.0.7:8000\n", Kind.HAPROXY)
    fleet = parse_fleet(with_entries(FLEET, sections(entries(found, parse_fleet(FLEET, "x")))), "x")
    assert "10.0.0.7" in [box.address for box in fleet.boxes.values()]
