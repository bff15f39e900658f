"""What else on a box starts and stops our units is found where administrators put such things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import restarts, supervisors
from fleetctl.onbox.acting import Target
from fleetctl.onbox.main import Call
from fleetctl.onbox.unitfiles import told_of, unit_files

COPY, SPLIT = "fleetctl-replicas-qwen.service", "fleetctl-split-qwen.service"
TARGET = Target([COPY, SPLIT, "old-vllm.service"], [COPY[:-8], SPLIT[:-8]], [8000])


def files(folder: Path, texts: dict[str, str]) -> str:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("texts", "acts"),
    [
        ({"x.service": f"[Unit]\nRequires={SPLIT}\n"}, [(SPLIT, "Requires")]),
        ({"x.service": f"[Unit]\nBindsTo=a.service {SPLIT}\n"}, [(SPLIT, "BindsTo")]),
        ({"x.service": f"[Unit]\nOnFailure={COPY}\nConflicts={SPLIT}\n"}, [(COPY, "OnFailure"), (SPLIT, "Conflicts")]),
        (
            {"x.service": "[Service]\nExecStart=/bin/true\n", "x.service.d/a.conf": f"[Unit]\nWants={COPY}\n"},
            [(COPY, "Wants")],
        ),
        ({"x.timer": f"[Timer]\nUnit={SPLIT}\n"}, [(SPLIT, "Unit")]),
        ({"fleetctl-split-qwen.timer": "[Timer]\nOnCalendar=daily\n"}, [(SPLIT, "Unit")]),
        ({"old-vllm.path": "[Path]\nPathChanged=/x\n"}, [("old-vllm.service", "Unit")]),
        ({"old-vllm.timer": "[Timer]\nUnit=other.service\n"}, []),
        ({"x.service": f"[Service]\nExecStartPost=-/usr/bin/systemctl try-restart {COPY}\n"}, [(COPY, "try-restart")]),
        ({"x.service": f"[Service]\nExecStart=/bin/sh -c 'docker stop {COPY[:-8]}'\n"}, [(COPY[:-8], "stop")]),
        # Only looks, only an order, only a comment, of fleetctl itself, masked.
        ({"x.service": f"[Service]\nExecStart=/usr/bin/systemctl is-active {COPY}\n"}, []),
        ({"x.service": f"[Unit]\nAfter={COPY}\n"}, []),
        ({"x.service": f"[Unit]\n#Requires={SPLIT}\n"}, []),
        ({"fleetctl-guard.service": f"# Made by fleetctl for x\n[Unit]\nWants={COPY}\n"}, []),
    ],
)
def test_unit_files_of_others(texts: dict[str, str], acts: list[tuple[str, str]], tmp_path: Path) -> None:
    found = {name: told_of(name, paths, TARGET) for name, paths in unit_files([files(tmp_path, texts)]).items()}
    assert [(act["on"], act["verb"]) for told in found.values() if told for act in told["acts"]] == acts


def test_of_two_files_of_a_unit_the_one_of_the_administrator_counts_and_second_names_do_not(tmp_path: Path) -> None:
    etc = files(tmp_path / "etc", {"x.service": "[Unit]\n"})
    lib = files(tmp_path / "lib", {"x.service": f"[Unit]\nWants={COPY}\n", "y.service": "[Unit]\n"})
    (tmp_path / "etc" / "alias.service").symlink_to("../lib/y.service")
    (tmp_path / "etc" / "masked.service").symlink_to("/dev/null")
    assert unit_files([etc, lib]) == {"x.service": [f"{etc}/x.service"], "y.service": [f"{lib}/y.service"]}


def test_cron_tables_of_the_system_and_of_users_and_the_scripts_they_name(tmp_path: Path, monkeypatch: Any) -> None:
    script = tmp_path / "restart.sh"
    script.write_text(f"#!/bin/bash\nsystemctl restart {COPY}\n")
    etc = files(
        tmp_path,
        {
            "crontab": f"SHELL=/bin/sh\n# 0 3 * * * root systemctl stop {COPY}\n0 4 * * * root {script} --now\n",
            "cron.d/look": f"* * * * * root systemctl is-active {COPY}\n",
            "spool/ann": "@reboot API_KEY=s3cret /opt/vllm/bin/vllm serve m --api-key s3cret\n",
            "cron.daily/tidy": f"#!/bin/sh\nfor c in {COPY[:-8]}; do docker rm -f $c {COPY[:-8]}; done\n",
            "cron.daily/logrotate": "#!/bin/sh\n/usr/sbin/logrotate /etc/logrotate.conf\n",
        },
    )
    monkeypatch.setattr(supervisors, "CRON_FILES", (f"{etc}/crontab", f"{etc}/none"))
    monkeypatch.setattr(supervisors, "CRON_FOLDERS", (f"{etc}/cron.d", f"{etc}/spool", f"{etc}/none"))
    monkeypatch.setattr(supervisors, "CRON_SCRIPTS", (f"{etc}/cron.daily",))
    found = supervisors.cron_entries(TARGET)
    assert [(e["file"][len(etc) + 1 :], e["number"], [a["on"] for a in e["acts"]], e["engine"]) for e in found] == [
        ("crontab", 3, [COPY], False),
        ("spool/ann", 1, [], True),
        ("cron.daily/tidy", 0, [COPY[:-8]], False),
    ]
    assert found[0]["acts"][0]["where"] == str(script)
    assert "s3cret" not in json.dumps(found)


def test_services_of_users_and_of_all_users_count_as_enabled_where_a_link_starts_them(tmp_path: Path) -> None:
    serve = "[Service]\nExecStart=/opt/vllm/bin/vllm serve m\n"
    homes = {
        "": files(tmp_path / "etc", {"shared.service": serve, "off.service": serve, "mail.service": "[Service]\n"}),
        "ann": files(tmp_path / "ann", {"mine.service": serve, "mine.timer": "[Timer]\nOnCalendar=daily\n"}),
        "bob": files(tmp_path / "bob", {"later.service": serve}),
        "eve": str(tmp_path / "none"),
    }
    for link in ("ann/default.target.wants/shared.service", "ann/timers.target.wants/mine.timer"):
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to("/dev/null")
    found = supervisors.told_of_users(homes, {"ann"}, TARGET)
    assert [(one["user"], one["name"], one["enabled"], one["lingers"]) for one in found] == [
        ("", "off.service", False, True),
        ("", "shared.service", True, True),
        ("ann", "mine.service", True, True),
        ("bob", "later.service", False, False),
    ]


def inspected(**more: Any) -> dict[str, Any]:
    """What `docker inspect` says of a container, cut to what matters."""
    config = {
        "Image": more.pop("image", "postgres:16"),
        "Cmd": more.pop("cmd", None),
        "Entrypoint": None,
        "Env": ["K=s"],
    }
    host = {
        "RestartPolicy": {"Name": more.pop("policy", "unless-stopped"), "MaximumRetryCount": 0},
        "NetworkMode": more.pop("network", "bridge"),
        "PortBindings": {f"{port}/tcp": [{"HostIp": "", "HostPort": str(port)}] for port in more.pop("ports", [])},
    }
    return {"Name": f"/{more.pop('name', 'db')}", "Config": config, "HostConfig": host, "State": {"Status": "running"}}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (inspected(), None),
        (inspected(image="vllm/vllm-openai:v0.11.0", cmd=["--model", "m"]), (True, [])),
        (
            inspected(
                image="nvcr.io/nvidia/vllm:25.09-py3", cmd=["vllm", "serve", "m", "--port", "8000"], network="host"
            ),
            (True, [8000]),
        ),
        (inspected(ports=[8000]), (False, [8000])),
        (inspected(ports=[8001]), None),
        (inspected(name=COPY[:-8]), (False, [])),
        ({"Name": "/odd", "Config": None, "HostConfig": None, "State": None}, None),
    ],
)
def test_containers_that_are_engines_or_have_a_port_or_a_name_of_ours(entry: dict[str, Any], told: Any) -> None:
    found = supervisors._container("docker", entry, TARGET, True)
    assert [(one["engine"], one["ports"]) for one in found] == ([] if told is None else [told])
    assert all(one["policy"] == "unless-stopped" for one in found)


def journal(*records: tuple[str, str, str]) -> str:
    """Records as `journalctl -o json` prints them: PID, message id, message."""
    return "\n".join(
        json.dumps(
            {"__REALTIME_TIMESTAMP": str((100 + n) * 1_000_000), "_PID": pid, "MESSAGE_ID": which, "MESSAGE": text}
        )
        for n, (pid, which, text) in enumerate(records)
    )


AGAIN = ("1", restarts.SCHEDULED, "x.service: Scheduled restart job, restart counter is at 1.")
TOO_QUICKLY = ("1", "", "x.service: Start request repeated too quickly.")
STARTED = ("1", "39f53479d3a045ac8e11786248231fbf", "Started x.service - x.")
TAKEN = 'docker: Error response from daemon: Conflict. The container name "/x" is already in use by container "f00".'


@pytest.mark.parametrize(
    ("records", "times", "refused", "collisions"),
    [
        ([], [], False, 0),
        ([AGAIN, AGAIN, TOO_QUICKLY], [100.0, 101.0], True, 0),
        ([TOO_QUICKLY, STARTED], [], False, 0),
        (
            [
                ("77", restarts.SCHEDULED, "an engine that only says so"),
                ("77", "", "Start request repeated too quickly."),
            ],
            [],
            False,
            0,
        ),
        ([("77", "", TAKEN), AGAIN], [101.0], False, 1),
        ([("77", "", "container PID is zombie and can not be killed. Use --init")], [], False, 1),
    ],
)
def test_what_the_journal_says_of_restarts(
    records: list[tuple[str, str, str]], times: list[float], refused: bool, collisions: int, monkeypatch: Any
) -> None:
    said = journal(*records) + "\nno json\n" + json.dumps({"MESSAGE": [1, 2], "_PID": "1"}) + "\n"
    monkeypatch.setattr(restarts, "run", lambda call, argv, timeout: {"rc": 0, "out": said, "err": ""})
    found = restarts.restarts_of(Call(1, lambda message: None), "x.service")
    assert (found["known"], found["times"], found["refused"], len(found["collisions"])) == (
        True,
        times,
        refused,
        collisions,
    )


@pytest.mark.parametrize(
    "told",
    ["null", "[5]", "{}", "5", "[" * 100_000, '[{"HostConfig": [1], "Config": "x"}]', '[{"Config": {"Cmd": 5}}]'],
)
def test_containers_that_are_none_hide_no_other(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = '[{"Name": "/left", "Config": {"Image": "vllm/vllm-openai"}, "HostConfig": {}}'
    whole = f"{good}, {told[1:-1] or 5}]" if told.startswith("[{") else told

    def run(call: Any, argv: list[str], timeout: float) -> dict[str, Any]:
        return {"rc": 0, "out": "aaaa" if argv[1] == "ps" else whole}

    monkeypatch.setattr(supervisors, "run", run)
    found = supervisors._containers_of(Call(1, lambda message: None), "docker", "docker", Target([], [], [8000]))
    assert [one["name"] for one in found] == (["left"] if told.startswith("[{") else [])
