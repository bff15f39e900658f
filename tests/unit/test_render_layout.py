"""A layout as a Release: who runs where, with which words, and when a process has to be replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetctl.engine.runtimes.flags import layer_flags
from fleetctl.engine.runtimes.vllm import ALIASES
from fleetctl.errors import SpecError
from fleetctl.render.layout import render_layout
from fleetctl.render.release import File, Release
from fleetctl.spec.fleet import Fleet

EXAMPLE = Path(__file__).parents[2] / "templates" / "example.yaml"


def example() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return document


def render(document: dict[str, Any], layout: str) -> Release:
    return render_layout(Fleet.model_validate(document), layout)


def file(release: Release, box: str, end: str) -> File:
    return next(file for file in release.files[box] if file.path.endswith(end))


def line(release: Release, box: str, key: str) -> str:
    """The value of a line in the engine's unit on a box."""
    unit = file(release, box, f"{release.ranks_on(box)[0][1].unit}").content
    return next(text.partition("=")[2] for text in unit.splitlines() if text.startswith(f"{key}="))


def with_arguments(*words: str, **more: Any) -> dict[str, Any]:
    document = example()
    document["models"]["qwen"]["arguments"] = list(words)
    document["models"]["qwen"].update(more)
    return document


def test_the_same_input_gives_the_same_bytes() -> None:
    assert render(example(), "split").model_dump_json() == render(example(), "split").model_dump_json()


def test_a_split_is_one_engine_and_copies_are_one_each() -> None:
    split, replicas = render(example(), "split"), render(example(), "replicas")
    assert [(e.id, e.kind, [r.box for r in e.ranks]) for e in split.engines] == [
        ("split/qwen", "split", ["spark1", "spark2"])
    ]
    assert [(e.id, e.kind, e.address, e.concurrency) for e in replicas.engines] == [
        ("replicas/qwen@spark1", "copy", "192.168.1.11", 8),
        ("replicas/qwen@spark2", "copy", "192.168.1.12", 12),
    ]


def test_a_release_survives_json() -> None:
    release = render(example(), "split")
    assert Release.model_validate_json(release.model_dump_json()) == release


def test_every_engine_has_the_server_that_the_proxy_knows_it_by() -> None:
    for layout in ("split", "replicas"):
        release = render(example(), layout)
        assert release.proxy is not None
        servers = {(b.name, s.name): (s.address, s.port, s.maxconn) for b in release.proxy.backends for s in b.servers}
        for engine in release.engines:
            assert servers[engine.backend, engine.server] == (engine.address, engine.port, engine.concurrency)


def test_the_configuration_of_the_proxy_is_the_same_in_every_layout_but_for_what_is_enabled() -> None:
    split, replicas = render(example(), "split").proxy, render(example(), "replicas").proxy
    assert split is not None and replicas is not None
    assert split.fingerprint() == replicas.fingerprint()
    assert split != replicas


def test_the_proxy_lies_on_its_own_box_only() -> None:
    release = render(example(), "replicas")
    assert any("fleetctl-proxy" in file.path for file in release.files["spark1"])
    assert not any("proxy" in file.path for file in release.files["spark2"])


def test_secrets_are_references_in_files_that_only_root_can_read() -> None:
    release = render(example(), "split")
    environment = file(release, "spark1", "split-qwen.env")
    assert (environment.mode, environment.quoting, environment.content) == (
        0o600,
        "environment",
        "HF_TOKEN=@secret:HF_TOKEN@\n",
    )
    assert environment.secrets["HF_TOKEN"].file == "~/.secrets/hf"
    keys = file(release, "spark1", "/keys")
    assert (keys.mode, keys.content, list(keys.secrets)) == (0o600, "@secret:agents@ agents\n", ["agents"])
    for files in release.files.values():
        assert not any("@secret:" in f.content and f.mode != 0o600 for f in files)


def test_a_unit_conflicts_with_other_layouts_and_superseded_units_of_its_box_and_is_ordered_with_each() -> None:
    release = render(example(), "replicas")
    for box, others in {
        "spark1": ["fleetctl-split-qwen.service", "old-vllm.service", "vllm-watchdog.timer"],
        "spark2": ["fleetctl-split-qwen.service", "old-vllm.service"],
    }.items():
        unit = file(release, box, "fleetctl-replicas-qwen.service").content.splitlines()
        assert [text.partition("=")[2] for text in unit if text.startswith("Conflicts=")] == others
        for other in others:
            assert f"After={other}" in unit or f"Before={other}" in unit


def test_two_units_are_never_both_after_each_other() -> None:
    split = file(render(example(), "split"), "spark1", "fleetctl-split-qwen.service").content
    replicas = file(render(example(), "replicas"), "spark1", "fleetctl-replicas-qwen.service").content
    assert "After=fleetctl-replicas-qwen.service" in split
    assert "Before=fleetctl-split-qwen.service" in replicas


def test_the_start_limit_is_longer_than_that_many_slow_failures() -> None:
    release = render(example(), "replicas")
    longest = int(line(release, "spark1", "TimeoutStartSec")) + int(line(release, "spark1", "TimeoutStopSec"))
    longest += int(line(release, "spark1", "RestartSec"))
    assert int(line(release, "spark1", "TimeoutStartSec")) > 900
    assert int(line(release, "spark1", "StartLimitIntervalSec")) > longest * int(
        line(release, "spark1", "StartLimitBurst")
    )


def digests(document: dict[str, Any], layout: str = "replicas") -> list[str]:
    return [rank.digest for engine in render(document, layout).engines for rank in engine.ranks]


def test_a_new_layout_or_another_time_limit_replaces_no_process() -> None:
    document = example()
    document["layouts"]["alone"] = {"qwen": {"copies": ["spark1"]}}
    document["models"]["qwen"].update(load_limit="20m", stop_limit="5m")
    document["superseded"] = []
    assert digests(document) == digests(example())


@pytest.mark.parametrize(
    "change",
    [
        {"context": 1000},
        {"arguments": ["--enforce-eager"]},
        {"environment": {"A": "b"}},
        {"environment": {"HF_HUB_OFFLINE": "1", "HF_TOKEN": {"file": "/other"}}},
        {"launch": {"venv": "/opt/other"}},
        {"weights": "/models/other"},
    ],
)
def test_what_the_process_depends_on_replaces_it(change: dict[str, Any]) -> None:
    document = example()
    document["models"]["qwen"].update(change)
    for layout in ("split", "replicas"):
        assert not set(digests(document, layout)) & set(digests(example(), layout))


def test_the_process_carries_its_digest() -> None:
    release = render(example(), "replicas")
    rank = release.engines[0].head
    unit = file(release, rank.box, rank.unit).content
    assert f"Environment=FLEETCTL_ENGINE=replicas/qwen@{rank.digest[:12]}\n" in unit


def test_ranks_of_a_split_agree_on_what_they_compare_and_differ_in_their_place() -> None:
    release = render(example(), "split")
    head, follower = (line(release, box, "ExecStart").split() for box in ("spark1", "spark2"))
    assert head[head.index("--digest") + 1] == follower[follower.index("--digest") + 1]
    for words, rank in ((head, "0"), (follower, "1")):
        assert words[words.index("--node-rank") + 1] == words[words.index("--rank") + 1] == rank
        assert words[words.index("--master-addr") + 1] == words[words.index("--head") + 1] == "10.0.0.1"
        assert (words[words.index("--master-port") + 1], words[words.index("--port") + 1]) == ("29500", "29501")
    assert "--headless" in follower and "--headless" not in head
    assert "--health" in head and "--health" not in follower


def test_own_arguments_replace_those_of_fleetctl_and_later_ones_earlier_ones() -> None:
    document = with_arguments("--max_num_seqs=4", "--kv-cache-dtype", "auto", "--seed", "1")
    placement = document["layouts"]["replicas"]["qwen"]
    placement["arguments"] = ["--seed", "2"]
    placement["copies"] = {"spark1": {"arguments": ["--seed", "-1", "--no-enable-prefix-caching"]}, "spark2": None}
    release = render(document, "replicas")
    one, two = line(release, "spark1", "ExecStart"), line(release, "spark2", "ExecStart")
    assert one.endswith("--max_num_seqs=4 --kv-cache-dtype auto --seed -1 --no-enable-prefix-caching")
    assert two.endswith("--max_num_seqs=4 --kv-cache-dtype auto --seed 2")
    for text in (one, two):
        assert text.count("kv-cache-dtype") == text.count("--seed") == 1
        assert "--max-num-seqs" not in text


@pytest.mark.parametrize(
    ("earlier", "later", "joined"),
    [
        (["--a", "1"], ["--a=2"], ["--a=2"]),
        (["--a_b", "1", "--c"], ["--a-b", "2"], ["--c", "--a-b", "2"]),
        (["--enable-x"], ["--no-enable-x"], ["--no-enable-x"]),
        (["-tp", "2"], ["--tensor-parallel-size", "4"], ["--tensor-parallel-size", "4"]),
        (["--speculative-config", "{}"], ["-sc.method", "mtp"], ["-sc.method", "mtp"]),
        (["--names", "a", "b", "-1"], ["--names", "c"], ["--names", "c"]),
        (["--x", "--x"], ["--y"], ["--x", "--x", "--y"]),
    ],
)
def test_a_flag_is_one_however_it_is_spelled(earlier: list[str], later: list[str], joined: list[str]) -> None:
    assert layer_flags([earlier, later], ALIASES) == joined


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--port", "9000"], "port: of the placement"),
        (["--served_model_name=x"], "served_as:"),
        (["--gpu-memory-utilization", "0.95"], "gpu_memory_utilization: of the box"),
        (["-n", "2"], "boxes of split"),
        (["--api-key", "sk-x"], "VLLM_API_KEY"),
        (["/models/other"], "weights:"),
    ],
)
def test_arguments_on_which_others_depend_are_refused_with_the_key_to_use(words: list[str], hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        render(with_arguments(*words), "replicas")
    assert hint in (refused.value.hint or "")


def test_speculative_decoding_is_one_json_word() -> None:
    document = with_arguments(speculative={"method": "mtp", "num_speculative_tokens": 4, "draft": {"x": [1]}})
    text = line(render(document, "replicas"), "spark1", "ExecStart")
    word = text.partition("--speculative-config '")[2].partition("'")[0]
    assert json.loads(word) == {"method": "mtp", "num_speculative_tokens": 4, "draft": {"x": [1]}}


def two_models(**second: Any) -> dict[str, Any]:
    document = example()
    document["models"]["other"] = {
        "weights": "org/other",
        "weights_size": "5GiB",
        "context": 1024,
        "launch": {"venv": "/opt/vllm"},
    }
    document["layouts"]["replicas"]["other"] = {"copies": ["spark1"], **second}
    return document


def test_ports_count_up_within_a_layout() -> None:
    release = render(two_models(), "replicas")
    assert {(engine.model, engine.port) for engine in release.engines} == {("qwen", 8000), ("other", 8001)}


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (two_models(port=8000), ["port 8000 on spark1", "model qwen", "model other"]),
        (two_models(port=8080), ["port 8080 on spark1", "the proxy", "model other"]),
        (two_models(copies=None, split=["spark1", "spark2"], master_port=8000), ["model qwen", "master port of"]),
        (two_models(copies=None, split=["spark1", "spark2"], master_port=65535), ["65536", "does not exist"]),
    ],
)
def test_a_port_that_two_want_is_refused_with_both_names(document: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        render(document, "replicas")
    for name in names:
        assert name in refused.value.message


def test_ranks_meet_on_the_link_where_an_engine_may_have_the_same_port() -> None:
    document = two_models(copies=None, split=["spark1", "spark2"], master_port=7999)
    render(document, "replicas")
    del document["boxes"]["spark1"]["link"]
    with pytest.raises(SpecError, match=r"model qwen .* the meeting of the ranks of model other"):
        render(document, "replicas")


def test_the_proxy_may_share_a_port_with_an_engine_on_another_address_of_the_box() -> None:
    document = example()
    document["proxy"].update(address="192.168.1.100", port=8000)
    render(document, "replicas")
    document["proxy"]["address"] = "0.0.0.0"
    with pytest.raises(SpecError, match="port 8000 on spark1"):
        render(document, "replicas")


def test_names_that_run_into_each_other_are_refused() -> None:
    document = example()
    document["models"]["b-c"] = document["models"]["c"] = document["models"]["qwen"]
    document["layouts"] = {
        "a": {"b-c": {"copies": ["spark1"]}},
        "a-b": {"c": {"copies": ["spark1"]}},
    }
    with pytest.raises(SpecError, match=r"would both be fleetctl-a-b-c\.service"):
        render(document, "a")


def test_a_new_build_under_an_old_name_shares_its_backend() -> None:
    document = example()
    document["models"]["qwen-next"] = {**document["models"]["qwen"], "weights": "/models/next"}
    document["layouts"]["next"] = {"qwen-next": {"copies": ["spark1", "spark2"]}}
    release = render(document, "next")
    assert release.proxy is not None
    assert [backend.name for backend in release.proxy.backends] == ["qwen"]
    assert {engine.backend for engine in release.engines} == {"qwen"}


def test_two_models_of_a_layout_that_clients_cannot_tell_apart_are_refused() -> None:
    document = two_models()
    document["models"]["other"]["served_as"] = ["qwen"]
    with pytest.raises(SpecError, match="cannot tell qwen and other apart"):
        render(document, "split")


@pytest.mark.parametrize(("kind", "layout"), [("layout", "replica"), ("box", "split"), ("model", "split")])
def test_a_name_that_is_not_there_is_answered_with_the_nearest(kind: str, layout: str) -> None:
    document = example()
    if kind == "box":
        document["layouts"]["split"]["qwen"]["split"] = ["spark1", "spark3"]
    if kind == "model":
        document["layouts"]["split"] = {"qwem": document["layouts"]["split"]["qwen"]}
    with pytest.raises(SpecError, match=f"there is no {kind}") as refused:
        render(document, layout)
    assert (refused.value.hint or "").startswith("did you mean")


def container(**launch: Any) -> str:
    document = example()
    document["models"]["qwen"]["launch"] = {"image": "vllm@sha256:1", **launch}
    release = render(document, "replicas")
    assert all(engine.binary is None for engine in release.engines)
    return file(release, "spark1", "fleetctl-replicas-qwen.service").content


def test_a_container_is_removed_before_and_after_and_gets_variables_by_name() -> None:
    unit = container(options=["--cap-add=IPC_LOCK"])
    assert "ExecStartPre=-/usr/bin/docker rm --force fleetctl-replicas-qwen\n" in unit
    assert "ExecStopPost=-/usr/bin/docker rm --force fleetctl-replicas-qwen\n" in unit
    assert "ExecStop=/usr/bin/docker stop -t 60 fleetctl-replicas-qwen\n" in unit
    assert "run --rm --init --pull=never --name fleetctl-replicas-qwen --network host --ipc host" in unit
    assert "-e HF_TOKEN -e FLEETCTL_ENGINE --cap-add=IPC_LOCK --entrypoint vllm vllm@sha256:1 serve" in unit
    assert "--mount type=bind,source=/models/qwen-nvfp4,target=/models/qwen-nvfp4,readonly" in unit


def test_a_podman_container_has_group_limits_and_log_of_its_unit_and_is_watched() -> None:
    unit = container(engine="podman")
    assert "--cgroups=disabled --ulimit=host --log-driver=passthrough" in unit
    assert " /etc/fleetctl/bin/contained.py /run/fleetctl-replicas-qwen.pid /usr/bin/podman" in unit
    assert "--pidfile /run/fleetctl-replicas-qwen.pid " in unit
    assert "ExecStartPre=-/usr/bin/podman rm --force --ignore --time 0 fleetctl-replicas-qwen\n" in unit


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({}, "--gpus all "),
        ({"engine": "podman"}, "--device nvidia.com/gpu=all "),
        ({"gpus": "amd"}, "--device /dev/kfd --device /dev/dri --group-add video "),
        ({"gpus": "intel", "engine": "podman"}, "--device /dev/dri --group-add video "),
        ({"options": ["--gpus", "device=1"]}, "-e FLEETCTL_ENGINE --gpus device=1 --entrypoint"),
        ({"options": ["--device=/dev/nvidia0"]}, "-e FLEETCTL_ENGINE --device=/dev/nvidia0 --entrypoint"),
        ({"gpus": "none"}, "-e FLEETCTL_ENGINE --entrypoint"),
    ],
)
def test_a_container_gets_the_gpus_of_a_vendor_or_those_that_its_options_name(
    launch: dict[str, Any], words: str
) -> None:
    unit = container(**launch)
    assert words in unit
    assert sum(unit.count(word) for word in ("--gpus ", "nvidia.com", "/dev/kfd")) <= 1


def test_an_image_pinned_by_its_id_is_started_by_that() -> None:
    identity = f"sha256:{'a' * 64}"
    assert f"--entrypoint vllm {identity} serve" in container(id=identity)
    assert f"--entrypoint vllm {identity} serve" in container(id="a" * 64)


SNAPSHOT = "/srv/hub/models--org--qwen/snapshots/0123abc"
AT_HOME = "--mount type=bind,source=/root/.cache/huggingface,target=/root/.cache/huggingface"


@pytest.mark.parametrize(
    ("weights", "environment", "options", "words"),
    [
        (SNAPSHOT, {}, [], "source=/srv/hub/models--org--qwen,target=/srv/hub/models--org--qwen,readonly"),
        ("/srv/q-00001-of-00003.gguf", {}, [], "source=/srv,target=/srv,readonly"),
        ("org/qwen", {}, [], f"{AT_HOME} "),
        ("org/qwen", {"HF_HUB_OFFLINE": "1"}, [], f"{AT_HOME},readonly "),
        ("org/qwen", {"HF_HOME": "/srv/hf"}, [], "--mount type=bind,source=/srv/hf,target=/srv/hf "),
        (
            "org/qwen",
            {},
            ["--volume", "/srv/hub:/root/.cache/huggingface"],
            "--volume /srv/hub:/root/.cache/huggingface",
        ),
    ],
)
def test_weights_and_the_cache_of_the_hub_are_at_the_same_path_in_a_container(
    weights: str, environment: dict[str, str], options: list[str], words: str
) -> None:
    document = example()
    launch = {"image": "vllm@sha256:1", "options": options}
    document["models"]["qwen"] |= {"weights": weights, "environment": environment, "launch": launch}
    unit = file(render(document, "replicas"), "spark1", "fleetctl-replicas-qwen.service").content
    assert words in unit
    ours = weights == "org/qwen" and not options
    assert ("ExecStartPre=/usr/bin/mkdir -p" in unit) == ours
