"""What others wrote to run engines becomes entries for fleet.yaml: one file of each kind, and what is wrong with many.

After a wanted change: ``UPDATE_GOLDEN=1 pytest tests/unit/test_importing.py``, then look at the difference.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
import yaml
from planned import OFFICE

from fleetctl.errors import SpecError
from fleetctl.importing.entries import Entries, entries
from fleetctl.importing.found import FoundModel
from fleetctl.importing.kind import Kind
from fleetctl.importing.kinds import detect, read
from fleetctl.importing.words import commands, shell_words
from fleetctl.importing.written import document, sections, superseded
from fleetctl.render.layout import render_layout
from fleetctl.resources import root_text
from fleetctl.spec.entries import with_entries
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.load import parse_fleet

FILES = sorted((Path(__file__).parent / "imported").iterdir())
GOLDEN = Path(__file__).parent / "golden" / "imported"
SECRETS = re.compile(r"hf_[a-z]{12,}|sk-[a-z0-9]{8,}")
KINDS = {
    "compose.yaml": Kind.COMPOSE, "docker-run.sh": Kind.COMMAND, "haproxy.cfg": Kind.HAPROXY,
    "nginx-upstream.conf": Kind.NGINX, "nginx.conf": Kind.NGINX, "python-module.sh": Kind.COMMAND,
    "spark-vllm-docker.yaml": Kind.SPARK_VLLM_DOCKER, "sparkrun-defaults.yaml": Kind.SPARKRUN,
    "sparkrun.yaml": Kind.SPARKRUN, "vllm-qwen.service": Kind.SYSTEMD, "llama-server.sh": Kind.COMMAND,
    "llama-embed.service": Kind.SYSTEMD, "encoders.yaml": Kind.COMPOSE, "podman-tei.sh": Kind.COMMAND,
    "infinity.sh": Kind.COMMAND, "sparkrun-llama.yaml": Kind.SPARKRUN,
}  # fmt: skip
OFFICE_TEXT = yaml.safe_dump(OFFICE, sort_keys=False)
EXAMPLE = root_text("templates", "example.yaml")


def made_of(file: Path, fleet: Fleet | None = None, model: str | None = None) -> Entries:
    return entries(read(file.name, file.read_text()), fleet, model=model)


def merged(text: str, made: Entries) -> str:
    return with_entries(text, sections(made), superseded(made))


def one_model(text: str, kind: Kind | None = None, file: str = "-") -> FoundModel:
    (model,) = read(file, text, kind).models
    return model


def notes(text: str, kind: Kind | None = None, file: str = "-") -> str:
    return "\n".join(map(str, read(file, text, kind).notes))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_kind_of_file_is_recognised_and_becomes_the_golden_entries(file: Path) -> None:
    assert detect(file.name, file.read_text()) is KINDS[file.name]
    made = made_of(file)
    text = document(made, file.name) + "---\n" + "".join(f"{note}\n" for note in sorted(made.notes))
    golden = GOLDEN / f"{file.name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()
    assert SECRETS.search(text) is None


@pytest.mark.parametrize("source", ["office", "example"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_comes_out_is_a_fleet_when_it_is_merged_and_nothing_else_changes(file: Path, source: str) -> None:
    text = OFFICE_TEXT if source == "office" else EXAMPLE
    fleet = parse_fleet(text, "fleet.yaml")
    made = made_of(file, fleet)
    after = merged(text, made)
    lines = iter(after.splitlines())
    assert all(line in lines for line in text.splitlines()), "every line that was there is there, in its order"
    both = parse_fleet(after, "fleet.yaml")
    assert set(both.models) == set(fleet.models) | set(made.models)
    assert set(both.boxes) == set(fleet.boxes) | set(made.boxes)
    assert set(both.layouts) == set(fleet.layouts) | ({made.layout} if made.placings else set())
    assert SECRETS.search(after) is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_engines_that_come_out_can_be_started_in_the_words_of_their_kind(file: Path) -> None:
    made = made_of(file, parse_fleet(OFFICE_TEXT, "fleet.yaml"))
    fleet = parse_fleet(merged(OFFICE_TEXT, made), "fleet.yaml")
    if made.placings:
        engines = {engine.model: engine for engine in render_layout(fleet, made.layout).engines}
        assert {name: engine.runtime for name, engine in engines.items() if name in made.models} == {
            name: model.runtime for name, model in made.models.items()
        }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_printed_is_yaml_with_the_same_entries(file: Path) -> None:
    made = made_of(file, model="qwen")
    told = yaml.safe_load(document(made, file.name))
    assert set(told.get("models", {})) == set(made.models) and set(told.get("boxes", {})) == set(made.boxes)


def test_importing_into_a_written_fleet_keeps_its_comments_and_form() -> None:
    (unit,) = (file for file in FILES if file.name == "vllm-qwen.service")
    after = merged(EXAMPLE, made_of(unit, parse_fleet(EXAMPLE, "fleet.yaml")))
    assert "    load_limit: 15m\n  qwen-2:\n    # from vllm-qwen.service:15\n" in after
    assert "      concurrency: 12\n  imported:\n    qwen-2:\n" in after
    assert "  - {unit: vllm-watchdog.timer, boxes: [spark1]}\n  - vllm-qwen.service\n" in after
    again = made_of(unit, parse_fleet(after, "fleet.yaml"))
    assert list(again.models) == ["qwen-3"] and again.layout == "imported-2" and again.superseded == []


@pytest.mark.parametrize(
    "text",
    [
        OFFICE_TEXT.replace("\n", "\r\n"),
        OFFICE_TEXT.rstrip("\n"),
        OFFICE_TEXT + "superseded: [old.service]\n# the end\n",
        yaml.safe_dump(OFFICE, default_flow_style=True, width=10**6),
        yaml.safe_dump({**OFFICE, "layouts": OFFICE["layouts"]}, sort_keys=True),
        OFFICE_TEXT.replace("layouts:\n", "layouts:\n  # those we have\n") + "\n\n",
        OFFICE_TEXT.replace("proxy:\n", "  # a comment at the end of layouts\n# and one about the proxy\nproxy:\n"),
    ],
    ids=["crlf", "no line break at the end", "a list on one line", "all on one line", "sorted", "comments", "ends"],
)
def test_entries_fit_a_fleet_however_it_is_written(text: str) -> None:
    fleet = parse_fleet(text, "fleet.yaml")
    for file in FILES:
        after = merged(text, made_of(file, fleet))
        assert ("\r\n" in after) == ("\r\n" in text) and (after.count("\n") == after.count("\r\n")) == ("\r\n" in text)


def test_a_section_that_is_only_an_alias_is_not_edited() -> None:
    text = OFFICE_TEXT.replace("layouts:\n", "layouts: &l\n") + "x-other: *l\n"
    with pytest.raises(SpecError):
        with_entries(text, {"models": {"m": ["weights: m", "context: 8", "launch: {venv: /v}"]}})
    shared = OFFICE_TEXT.replace("reserve: 16GiB", "reserve: 16GiB\n    ssh: &s {user: x}").replace(
        "reserve: 32GiB", "reserve: 32GiB\n    ssh: {user: x}"
    )
    after = with_entries(shared, {"boxes": {"c": ["address: 10.0.0.3", "memory: 1GiB", "reserve: 0"]}})
    assert "ssh: &s {user: x}\n  c:\n    address: 10.0.0.3\n" in after


def test_a_file_that_is_not_a_fleet_afterwards_is_not_returned() -> None:
    with pytest.raises(SpecError, match=r"f\.yaml with what is imported:\d+:\d+: models\.m\.context"):
        with_entries(OFFICE_TEXT, {"models": {"m": ["weights: m", "context: x", "launch: {venv: /v}"]}}, (), "f.yaml")


@pytest.mark.parametrize(
    ("server", "name", "address", "port"),
    [
        ("spark3.lan:8001", "spark3", "spark3.lan", 8001),
        ("GPU_7.example.com", "gpu-7", "GPU_7.example.com", None),
        ("[2001:db8::1]:8000", "box1", "2001:db8::1", 8000),
        ("192.0.2.7:99999", "box1", "192.0.2.7", None),
    ],
)
def test_a_server_has_a_name_an_address_and_a_port(server: str, name: str, address: str, port: int | None) -> None:
    (box,) = read("nginx.conf", f"upstream x {{ server {server}; }}").boxes
    assert (box.name, box.address, box.port) == (name, address, port)


# What becomes of what


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--max-model-len 32k", "context", 32_000),
        ("--max-model-len=32K", "context", 32_768),
        ("--max_model_len 8192", "context", 8192),
        ("--served-model-name a b", "served_as", ["a", "b"]),
        ("--kv-cache-dtype fp8", "kv_cache_dtype", "fp8"),
        ("--revision abc", "revision", "abc"),
        (
            """-sc '{"method":"ngram","num_speculative_tokens":2,"x":1}'""",
            "speculative",
            {"method": "ngram", "num_speculative_tokens": 2, "x": 1},
        ),
        (
            "--speculative-config.method mtp --speculative-config.num_speculative_tokens 3",
            "speculative",
            {"method": "mtp", "num_speculative_tokens": 3},
        ),
    ],
)
def test_a_flag_that_fleet_yaml_has_a_key_for_becomes_that_key(flags: str, key: str, value: object) -> None:
    model = one_model(f"vllm serve org/m {flags}")
    assert model.settings[key].value == value and model.arguments == []


@pytest.mark.parametrize(
    ("flags", "attributes"),
    [
        ("-tp 2 -pp 2", {"ranks": 4, "pipeline": True}),
        ("--gpu-memory-utilization .8", {"share": 0.8}),
        ("--kv-cache-memory-bytes 8G", {"cache": 8 * 1024**3}),
        ("--max-num-seqs=16 --port 9000", {"concurrency": 16, "port": 9000}),
        ("--master-port 29501 --nnodes 2 --node-rank 0 --headless", {"master_port": 29501, "arguments": []}),
        ("--seed -1 --no-enable-prefix-caching", {"arguments": ["--seed", "-1", "--no-enable-prefix-caching"]}),
        ("--chat-template 'a b.jinja'", {"arguments": ["--chat-template", "a b.jinja"]}),
    ],
)
def test_flags_that_belong_to_a_placement_go_there_and_others_stay_arguments(
    flags: str, attributes: dict[str, object]
) -> None:
    model = one_model(f"vllm serve org/m {flags}")
    assert {key: getattr(model, key) for key in attributes} == attributes


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("/opt/v/bin/vllm serve m", {"venv": "/opt/v"}),
        ("env A=1 vllm serve m", {"venv": "/opt/vllm"}),
        ("/opt/v/bin/python -m vllm.entrypoints.openai.api_server --model m", {"venv": "/opt/v"}),
        ("bash -c 'exec /opt/v/bin/vllm serve m'", {"venv": "/opt/v"}),
        ("cd /srv && A=1 /opt/v/bin/vllm serve m > log 2>&1 &", {"venv": "/opt/v"}),
        ("uv run vllm serve m", {"venv": "/opt/vllm"}),
        ("/opt/v/bin/python3.12 /opt/v/bin/vllm serve m", {"venv": "/opt/v"}),
        ("exec ~/v/bin/vllm serve m", {"venv": "/opt/vllm"}),
        ("if true; then /opt/v/bin/vllm serve m; fi", {"venv": "/opt/v"}),
        ("I=${I:-x/vllm}\ndocker run $I --model ${M:-m}", {"image": "x/vllm"}),
        ("docker run --rm -it img/vllm --model m", {"image": "img/vllm"}),
        ("docker run --entrypoint vllm --gpus all img serve m", {"image": "img", "options": ["--gpus=all"]}),
        ("podman run --device nvidia.com/gpu=all x vllm serve m",
         {"image": "x", "engine": "podman", "options": ["--device=nvidia.com/gpu=all"]}),
        ("docker run x bash -lc 'vllm serve m'", {"image": "x"}),
        ("docker run -v /data/m:/m -v /c:/root/.cache x/vllm --model /m/q",
         {"image": "x/vllm", "options": ["--volume=/c:/root/.cache"]}),
    ],
)  # fmt: skip
def test_what_an_engine_is_launched_from_is_seen(command: str, launch: dict[str, object]) -> None:
    assert one_model(command, Kind.COMMAND).settings["launch"].value == launch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve m --api-key sk-0123456789abcdef", "-:1: --api-key is left out"),
        ("vllm serve m \\\n --hf-token hf_0123456789abcdef", "-:2: --hf-token is a secret"),
        ("HF_TOKEN=hf_0123456789abcdef vllm serve m", "-:1: HF_TOKEN is a secret"),
        ("docker run -eHF_TOKEN=hf_0123456789abcdef x/vllm m", "-:1: HF_TOKEN is a secret"),
        ("vllm serve m --header 'Bearer sk-0123456789abcdef'", "-:1: --header is left out: a secret"),
        ("curl -H 'x: sk-0123456789abcdef'\nvllm serve m", "-:1: curl starts no engine"),
        ("docker run --annotation a=sk-0123456789abcdef x/vllm m", "--annotation is left out: a secret"),
        ("vllm serve m --max-model-len $LEN", "-:1: --max-model-len $LEN"),
        ("vllm serve m --max-model-len many", "no whole number"),
        ("vllm serve m --gpu-memory-utilization 80", "no share from 0 to 1"),
        ("vllm serve m --speculative-config '{'", "is no JSON object"),
        ('vllm serve m --speculative-config \'{"model": "x"}\'', "needs method"),
        ("vllm serve m --config serve.yaml", "--config is left out: the file that it names was not read"),
        ("vllm serve ./m", "neither a whole path"),
        ("vllm serve /m --revision x --max-model-len 8", "only a hub id has a revision"),
        ("vllm serve m extra", "one word too many"),
        ("vllm serve --port 8000", "no model is named"),
        ("docker run x/vllm --model /m/q", "/m/q is a path in the image"),
        ("docker run -p 80:81 x/vllm m", "port 80 leads to 81"),
        ("numactl -N 0 vllm serve m", "numactl and its options are left out"),
        ("ollama serve\nvllm serve m", "Ollama is started here"),
        ("vllm serve m --served-model-name", "--served-model-name has no value"),
        ("exec ~/v/bin/vllm serve m", "~/v is no whole path"),
        ("env PATH=/x:$PATH vllm serve m", "PATH is left out"),
    ],
)
def test_what_was_not_understood_is_said_with_its_line_and_without_secrets(text: str, said: str) -> None:
    told = notes(text, Kind.COMMAND)
    assert said in told and "0123456789abcdef" not in told
    assert "0123456789abcdef" not in document(entries(read("-", text, Kind.COMMAND)), "-")


def test_a_secret_becomes_a_reference_also_where_a_variable_has_it_by_default() -> None:
    service = "services:\n  a:\n    image: x/vllm\n    command: [--model, m, --api-key, '${K:-sk-0123456789abcdef}']\n"
    service += "    environment: {HF_TOKEN: '${MINE:-hf_0123456789abcdef}', A: '${B}', C: '${D:-e}'}\n"
    made = entries(read("compose.yaml", service))
    text = document(made, "compose.yaml") + "\n".join(map(str, made.notes))
    assert "0123456789abcdef" not in text
    values = {name: setting.value for name, setting in made.models["m"].environment.items()}
    assert values == {"HF_TOKEN": {"env": "MINE"}, "A": {"env": "B"}, "C": "e"}


def test_a_text_with_line_breaks_in_its_words_cannot_write_lines_of_its_own() -> None:
    text = "vllm serve '~/m\nmodels: {}' --max-model-len '8\nx: y'"
    made = entries(read("a\nb: c", text, Kind.COMMAND))
    assert list(yaml.safe_load(document(made, "a\nb: c"))) == ["models"]


SGLANG = "/opt/s/bin/python3 -m sglang.launch_server --model-path /m/q --context-length 65536 --tp 2 "
SGLANG += "--mem-fraction-static 0.8 --max-running-requests 24 --served-model-name q --enable-metrics --host 0.0.0.0 "
SGLANG += "--dist-init-addr 10.0.0.1:20000 --nnodes 2 --node-rank 0 --trust-remote-code --is-embedding"


def test_sglang_is_read_in_its_own_words() -> None:
    model = one_model(SGLANG)
    assert (model.runtime, model.name, model.ranks, model.concurrency) == ("sglang", "q", 2, 24)
    assert (model.share, model.master_port, model.arguments) == (0.91, 20000, ["--trust-remote-code"])
    values = {key: setting.value for key, setting in model.settings.items()}
    assert values == {"weights": "/m/q", "context": 65536, "task": "embed", "launch": {"venv": "/opt/s"}}
    after = merged(OFFICE_TEXT, entries(read("-", SGLANG), parse_fleet(OFFICE_TEXT, "fleet.yaml")))
    assert parse_fleet(after, "fleet.yaml").models["q"].runtime == "sglang"


@pytest.mark.parametrize(
    "text",
    [
        "sglang serve --model-path org/m --context-length 8",
        "docker run --gpus all lmsysorg/sglang:latest python3 -m sglang.launch_server --model org/m --context-length 8",
        "services:\n  a:\n    image: x/sglang\n    command: sglang serve --model-path org/m --context-length 8\n",
        "model: org/m\nruntime: sglang\ncontainer: c\ncommand: sglang serve --model-path {model} --context-length 8\n",
        "model: org/m\nruntime: sglang\ncontainer: c\ndefaults: {max_model_len: 8}\n",
    ],
)
def test_sglang_is_seen_in_every_kind_of_file(text: str) -> None:
    model = one_model(text)
    assert (model.runtime, model.settings["context"].value, model.settings["weights"].value) == ("sglang", 8, "org/m")
    made = entries(read("-", text), parse_fleet(OFFICE_TEXT, "fleet.yaml"))
    assert parse_fleet(merged(OFFICE_TEXT, made), "fleet.yaml").models["m"].runtime == "sglang"


UNIT = "[Service]\nExecStart=/opt/v/bin/vllm serve /m --max-model-len 8\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("TimeoutStartSec=infinity\n", "fleetctl needs a limit"),
        ("User=vllm\n", "unit:3: User= is left out"),
        ("EnvironmentFile=-/etc/x\n", "was not read"),
        ("Nice=5\n", "Nice= is left out"),
    ],
)
def test_what_a_unit_has_beside_its_engine_is_said(more: str, said: str) -> None:
    assert said in notes(UNIT + more, file="unit")


def test_a_unit_gives_its_limits_and_its_name() -> None:
    found = read("/etc/systemd/system/my.service", UNIT + "TimeoutStartSec=1h 30min\nTimeoutStopSec=90\n")
    settings = found.models[0].settings
    assert (settings["load_limit"].value, settings["stop_limit"].value) == ("90m", "90s")
    assert found.superseded == ["my.service"]
    assert read("-", UNIT).superseded == []
    assert read("-", f"# /usr/lib/systemd/system/old.service\n{UNIT}").superseded == ["old.service"]


def test_an_empty_directive_takes_back_what_was_before_it() -> None:
    model = one_model(UNIT + "ExecStart=\nExecStart=/opt/w/bin/vllm serve /n\n", file="x.service")
    assert model.settings["launch"].value == {"venv": "/opt/w"}


def test_servers_are_the_boxes_that_a_fleet_has_already_by_their_addresses() -> None:
    fleet = parse_fleet(OFFICE_TEXT, "fleet.yaml")
    text = "upstream x { server 10.0.0.1:8000 max_conns=8; server 10.1.0.2:8000 max_conns=4; server 10.0.0.9:8000; }"
    made = entries(read("nginx.conf", text), fleet)
    assert list(made.boxes) == ["box3"]
    (placing,) = made.placings
    assert [(seat.box, seat.concurrency) for seat in placing.seats] == [("a", 8), ("b", 4), ("box3", None)]
    assert placing.model == "qwen" and made.layout == "imported"


def test_a_share_that_the_reserve_does_not_leave_is_left_out() -> None:
    fleet = parse_fleet(OFFICE_TEXT, "fleet.yaml")
    made = entries(read("-", "vllm serve m --gpu-memory-utilization 0.8 --max-model-len 8"), fleet)
    assert [(seat.box, seat.share) for seat in made.placings[0].seats] == [("a", None), ("b", 0.8)]
    assert "0.8 is more than the reserve of a leaves (0.75)" in "\n".join(map(str, made.notes))


def test_a_split_over_more_boxes_than_there_are_is_not_placed() -> None:
    fleet = parse_fleet(OFFICE_TEXT, "fleet.yaml")
    made = entries(read("-", "vllm serve m -tp 4 --max-model-len 8"), fleet)
    assert not made.placed and "runs over 4 boxes" in "\n".join(map(str, made.notes))
    assert "#       split: [BOX1, BOX2, BOX3, BOX4]" in document(made, "-")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"boxes": ["c"]}, "there is no box c"),
        ({"layout": "split"}, "the layout split is in fleet.yaml already"),
    ],
)
def test_names_that_do_not_fit_the_fleet_are_refused(options: dict[str, object], said: str) -> None:
    fleet = parse_fleet(OFFICE_TEXT, "fleet.yaml")
    with pytest.raises(SpecError, match=said):
        entries(read("-", "vllm serve m"), fleet, **options)  # type: ignore[arg-type]


# Broken files


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", None, "is empty"),
        ("hello\n", None, "no file that can be imported"),
        ("services:\n  a: [\n", None, "x:3: this is not valid YAML"),
        ("services:\n  web: {image: nginx}\n", None, "the service web starts no engine"),
        ("services: {a: 5}\n", None, "the service a is no mapping"),
        ("model: m\nruntime: trtllm\ncontainer: c\n", None, "x:2: runtime: trtllm: only those"),
        ("model: m\nruntime: vllm\ncontainer: c\ncommand: ollama serve\n", None, "starts no engine that is read"),
        ("[Service]\nExecStart=/usr/local/bin/start.sh\n", None, "x:2: ExecStart= starts no engine"),
        ("upstream a {\n  server 10.0.0.1:8000;\n", None, "never closed"),
        ("upstream a { server unix:/run/x; }\n", None, "has nothing for fleet.yaml"),
        ("backend a\n  server a /run/x.sock\n", None, "has nothing for fleet.yaml"),
        ("docker run\n", Kind.COMMAND, "has no image"),
        ("docker run nginx\n", Kind.COMMAND, "has nothing for fleet.yaml"),
        ("vllm serve", Kind.COMPOSE, "has nothing for fleet.yaml"),
        ("a: &a [*a]\nservices: *a\n", None, "levels inside each other|nothing for fleet|not valid"),
        ("ray start --head\n", Kind.COMMAND, "Ray is started here"),
    ],
)
def test_a_file_with_nothing_in_it_for_a_fleet_is_refused_with_the_reason(
    text: str, kind: Kind | None, said: str
) -> None:
    with pytest.raises(SpecError) as refused:
        read("x", text, kind)
    assert re.search(said, str(refused.value)), refused.value


def test_whatever_a_file_has_in_it_there_is_a_message_and_never_a_traceback() -> None:
    rng = random.Random(11)
    fleet = parse_fleet(OFFICE_TEXT, "fleet.yaml")
    spoil = ["", "\x00", "\n", "{", "}", "'", '"', "\\", "${", "--", " = ", "é", ":", "-tp 0", "[", "]", "\t", "&", "*"]
    for _ in range(400):
        file = rng.choice(FILES)
        text = file.read_text()
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(spoil) + text[at + rng.randint(0, 30) :]
        try:
            made = entries(read(file.name, text, KINDS[file.name]), fleet)
            merged(OFFICE_TEXT, made)
        except SpecError:
            continue


# Words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b\tc", [["a", "b", "c"]]),
        ("a 'b c' \"d $e\" f\\ g", [["a", "b c", "d $e", "f g"]]),
        ("a \\\n  b # no\nc", [["a", "b"], ["c"]]),
        ("a \\   \n  b", [["a", "b"]]),
        ("a;b && c | d > e 2>&1", [["a"], ["b"], ["c"], ["d"]]),
        ('a="x\\"y" \'unclosed', [['a=x"y', "unclosed"]]),
    ],
)
def test_a_command_line_is_read_as_a_shell_reads_it(text: str, words: list[list[str]]) -> None:
    assert [[word.text for word in command] for command in commands(shell_words("-", text))] == words


def test_words_know_their_lines() -> None:
    words = shell_words("f", "a \\\n b '\n' c\nd", 5)
    assert [(word.text, word.place.line) for word in words if word.text != "\n"][-2:] == [("c", 7), ("d", 8)]
