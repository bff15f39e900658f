"""Profiles: what fits a model on a box and why, what ships, and what `fleetctl init` writes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_starter import survey

from fleetctl.cli.starter import advise, starter_text
from fleetctl.errors import SpecError
from fleetctl.profiles.folders import known_profiles, own_folders, save_profile
from fleetctl.profiles.kinds import ModelSeen, box_seen
from fleetctl.profiles.match import Kept, best
from fleetctl.profiles.profile import BoxKind, parse_profile, written
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.starter import starter

GIB = 1024**3
GB10 = {"gpus": {"rc": 0, "out": "NVIDIA GB10, [N/A], 580.95.05\n", "err": ""}, "memory": 127600748 * 1024}
TEXT = """\
profile: mine
date: "2026-11-30"
model: {names: [Tiny], config: {hidden_size: 128}}
box: {gpu: GB10, memory: 121GiB}
settings: {concurrency: {chat: 6, email: 3}, gpu_memory_utilization: 0.5, batched_tokens: 4096}
evidence:
  - {about: [concurrency.chat, concurrency.email, gpu_memory_utilization, batched_tokens], how: tune, told: measured}
"""
TINY = ModelSeen("Tiny-1", {"hidden_size": 128})


def kept(text: str = TEXT, own: bool = True) -> Kept:
    return Kept(parse_profile(text, "mine.yaml"), "mine.yaml", own)


def test_what_ships_is_read_has_evidence_for_everything_and_keeps_its_meaning_when_written() -> None:
    shipped = known_profiles()
    assert len(shipped) >= 5
    for one in shipped:
        again = parse_profile(written(one.profile), one.file)
        assert parse_profile(written(again), one.file) == again
        assert f"{one.profile.profile}.yaml" == one.file


@pytest.mark.parametrize(
    ("smi", "kind", "driver"),
    [
        (GB10["gpus"], ("GB10", 1, 127600748 * 1024), "580.95.05"),
        (
            {"rc": 0, "out": "NVIDIA L40S, 46068, 570.1\nNVIDIA L40S, 46068, 570.1\n"},
            ("L40S", 2, 46068 * 2**20),
            "570.1",
        ),
        ({"rc": 9, "out": "NVIDIA-SMI has failed", "err": ""}, (None, 0, 127600748 * 1024), None),
        (None, (None, 0, 127600748 * 1024), None),
    ],
)
def test_the_kind_of_a_box_is_its_gpus_and_the_memory_that_engines_have(
    smi: dict[str, Any] | None, kind: tuple[str | None, int, int], driver: str | None
) -> None:
    found = box_seen({"gpus": smi, "memory": 127600748 * 1024, "machine": "aarch64"})
    assert (found.kind.gpu, found.kind.gpus, found.kind.memory, found.driver) == (*kind, driver)


@pytest.mark.parametrize(
    ("model", "box", "over", "name"),
    [
        (ModelSeen("nvidia/Qwen3.6-35B-A3B-NVFP4"), "GB10", 1, "gb10-qwen3.6-35b-a3b-nvfp4"),
        (ModelSeen("Qwen3.6-35B-A3B-x", {"a": 1}, "fp8"), "GB10", 1, "gb10-qwen3.6-35b-a3b-fp8"),
        (ModelSeen("Qwen3.6-35B-A3B-x", {"a": 1}, "awq"), "GB10", 1, None),
        (ModelSeen("other", {"a": 1}, "nvfp4", 70 * GIB), "GB10", 1, "gb10-nvfp4-71gib-office"),
        (ModelSeen("other", {"a": 1}, "nvfp4", 80 * GIB), "GB10", 1, None),
        (ModelSeen("other", {"a": 1}, "nvfp4", 70 * GIB), "L40S", 1, None),
        (ModelSeen("MiniMax-M2.7-AWQ", {"a": 1}, "awq"), "GB10", 1, None),
        (ModelSeen("MiniMax-M2.7-AWQ", {"a": 1}, "awq"), "GB10", 2, "gb10x2-minimax-m2.7-awq"),
    ],
)
def test_a_profile_fits_by_model_quantization_and_box_and_says_so(
    model: ModelSeen, box: str, over: int, name: str | None
) -> None:
    found = best(known_profiles(), model, BoxKind(gpu=box, memory=127600748 * 1024), over)
    assert (found and found.profile.profile) == name
    assert found is None or f"the box has a {box}" in found.why


def test_of_several_that_fit_the_operators_own_comes_first_then_the_one_that_compared_more_then_the_newest() -> None:
    box = box_seen(GB10 | {"machine": "aarch64"}).kind
    shipped, newer = kept(own=False), kept(TEXT.replace("2026-11-30", "2026-12-01"), own=False)
    broad = kept(TEXT.replace("names: [Tiny], ", ""), own=False)
    assert best([shipped, newer, broad], TINY, box) is not None
    found = [best(known, TINY, box) for known in ([broad, newer, shipped], [newer, kept()])]
    assert [one and (one.kept.own, one.profile.date) for one in found] == [(False, "2026-12-01"), (True, "2026-11-30")]
    assert best([kept()], ModelSeen("Tiny-1", {"hidden_size": 256}), box) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("how: tune", "how: guess"), "evidence: 0: how"),
        (("batched_tokens]", "concurrency.agent]"), "nothing says where batched_tokens is from"),
        (("email: 3", "email: 0"), "settings: concurrency: email"),
        (("names: [Tiny], config: {hidden_size: 128}", ""), "a profile says which model it is of"),
        (("gpu: GB10", "gpa: GB10"), "box: gpa"),
        (("profile: mine", "profile: ../mine"), "profile:"),
        (("date:", "- date:"), "is no YAML"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_the_key(change: tuple[str, str], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_profile(TEXT.replace(*change), "mine.yaml")
    assert "mine.yaml" in str(refused.value) and says in str(refused.value)


def test_own_profiles_are_beside_fleet_yaml_and_in_the_home_folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    fleet = tmp_path / "fleet.yaml"
    assert own_folders(None, fleet) == []
    profile = parse_profile(TEXT, "mine.yaml")
    save_profile(profile, tmp_path / "profiles" / "mine.yaml")
    (tmp_path / "config" / "fleetctl" / "profiles").mkdir(parents=True)
    assert own_folders(None, fleet) == [tmp_path / "profiles", tmp_path / "config" / "fleetctl" / "profiles"]
    assert known_profiles(own_folders(None, fleet))[0].profile == profile
    with pytest.raises(SpecError, match="exists and is left alone"):
        save_profile(profile, tmp_path / "profiles" / "mine.yaml")
    with pytest.raises(SpecError, match="there is no such folder"):
        own_folders(tmp_path / "nowhere")


def started(known: list[Kept], model: dict[str, Any], mix: str | None = None, **more: Any) -> str:
    surveys = {
        host: survey(host, last, kind={**GB10, "machine": "aarch64"}, models=[model], **more)
        for last, host in enumerate(("spark1", "spark2"), 1)
    }
    found = starter(surveys)
    return starter_text(found, advise(found, surveys, known, mix))


OFFICE = {"path": "/models/new", "size": 70 * GIB, "context": 262144, "architecture": "X", "quantization": "nvfp4"}
OWN = {"path": "/models/Tiny-1", "size": GIB, "context": 4096, "architecture": "X", "config": {"hidden_size": 128}}


def test_a_first_file_has_the_values_of_the_profile_with_its_date_and_evidence() -> None:
    text = started(known_profiles(), OFFICE)
    fleet = parse_fleet(text, "fleet.yaml")
    placement, model = fleet.layouts["replicas"]["new"], fleet.models["new"]
    assert (placement.concurrency, model.kv_cache_dtype) == (12, "fp8")
    assert {seat.gpu_memory_utilization for seat in placement.boxes.values()} == {0.74}
    assert model.speculative is None, "the profile does not know whether the model has drafts of its own"
    words = " ".join(text.replace("#", " ").split())
    assert "profile gb10-nvfp4-71gib-office, 2026-11-30, for the mix any (report): public account of" in words
    assert "if the model has it: not set (report)" in words
    assert fleet.layouts["split"]["new"].concurrency == 12, "of a split nothing is known"
    assert parse_fleet(started(known_profiles(), OFFICE, "email"), "f").layouts["replicas"]["new"].concurrency == 8


def test_a_share_that_the_reserve_has_no_room_for_is_told_and_not_set() -> None:
    text = started(known_profiles(), OFFICE, others=40 * GIB)
    assert "0.74, which the reserve has no room for: not set" in " ".join(text.replace("#", " ").split())
    placement = parse_fleet(text, "fleet.yaml").layouts["replicas"]["new"]
    assert {seat.gpu_memory_utilization for seat in placement.boxes.values()} == {None}


def test_without_a_mix_the_smallest_concurrency_counts_and_where_no_profile_fits_it_is_said() -> None:
    fleet = parse_fleet(started([kept()], OWN), "fleet.yaml")
    placement = fleet.layouts["replicas"]["tiny-1"]
    assert (placement.concurrency, placement.arguments) == (3, ("--max-num-batched-tokens", "4096"))
    text = started([], OWN)
    assert parse_fleet(text, "fleet.yaml").layouts["replicas"]["tiny-1"].concurrency == 12
    assert "no profile fits Tiny-1 on GB10" in text


@pytest.mark.parametrize("known", [known_profiles(), [kept()], []])
def test_what_is_written_has_no_long_lines(known: list[Kept]) -> None:
    for model in (OFFICE, OWN):
        assert max(len(line) for line in started(known, model).splitlines()) <= 120


BREAKS = ["\n", "\r", "\x85", "\u2028", "\u2029", "\x1b[2J", "\x0b"]


@pytest.mark.parametrize("mark", BREAKS, ids=ascii)
def test_a_profile_that_somebody_shared_puts_nothing_else_into_the_file(mark: str) -> None:
    """Its words are in comments and in values; none of them may end a line and go on as settings."""
    evil = f"x{mark}evil: 1"
    settings = {
        "concurrency": {evil: 3},
        "speculative": {"method": evil, "num_speculative_tokens": 2, evil: evil, "a: 1}, evil": "}"},
    }
    about = [f"concurrency.{evil}", "speculative"]
    told: dict[str, Any] = yaml.safe_load(TEXT)
    told |= {"settings": settings, "evidence": [{"about": about, "how": "tune", "told": evil}]}
    text = started([kept(json.dumps(told))], OWN, evil)
    fleet = parse_fleet(text, "fleet.yaml")
    assert fleet.layouts["replicas"]["tiny-1"].concurrency == 3
    assert all("evil: 1" not in line.partition("#")[0] or "speculative" in line for line in text.splitlines())
    drafts = fleet.models["tiny-1"].speculative
    assert drafts is not None and drafts.model_dump()[evil] == evil
    for key in ("settings", "profile", "date"):
        value = {"kv_cache_dtype": f"fp8{mark}"} if key == "settings" else f"{told[key]}{mark}"
        with pytest.raises(SpecError, match=r"mine\.yaml"):
            kept(
                json.dumps(
                    {**told, key: value, "evidence": [{"about": ["kv_cache_dtype"], "how": "tune", "told": "x"}]}
                )
            )
