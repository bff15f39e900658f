"""Doctor's findings about memory, from recorded outputs: nothing on a healthy box, and each symptom told apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import COPY, GIB
from well_kept import (
    APPS,
    CALM,
    DAY,
    GPUS,
    MEMINFO,
    NOW,
    SERVED,
    TOTAL,
    engine_process,
    memory_findings,
    memory_told,
    scene,
)

from fleetctl.doctor.finding import Severity
from fleetctl.doctor.memory.killed import deaths
from fleetctl.doctor.memory.short import mark_of
from fleetctl.doctor.memory.told import Line, MemoryTold
from fleetctl.doctor.nvidia import Said, apps_of, gpus_of, shares_memory
from fleetctl.facts.types import Others


def lines(*texts: str, at: float = NOW - 600) -> dict[str, Any]:
    """Lines of a journal, newest first, a second apart."""
    return {"count": len(texts), "lines": [{"at": at - number, "text": text} for number, text in enumerate(texts)]}


def journal(**kinds: Any) -> dict[str, Any]:
    return {"journal": kinds}


def others(**more: Any) -> dict[str, Any]:
    sizes = {"services": {"postgresql.service": 6 * GIB}, "together": 6 * GIB, "total": 6 * GIB}
    return {"others": Others.model_validate({**sizes, "measured": 5 * DAY, "since": NOW - 5 * DAY, **more})}


def meminfo(**rows: int) -> dict[str, Any]:
    return {"meminfo": {**MEMINFO, **rows}}


WELL = scene()
OOM = "spark1 kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
KILLED_ENGINE = (  # newest first, as journalctl --reverse has them
    f"spark1 systemd[1]: {COPY}: Failed with result 'oom-kill'.",
    f"spark1 systemd[1]: {COPY}: A process of this unit has been killed by the OOM killer.",
    "spark1 kernel: Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:178219764kB, anon-rss:98231212kB, "
    "file-rss:0kB, shmem-rss:1024kB, UID:0 pgtables:201212kB oom_score_adj:500",
    f"{OOM}task_memcg=/system.slice/{COPY},task=VLLM::EngineCor,pid=4711,uid=0",
)
KILLED_DATABASE = (
    "spark1 kernel: Out of memory: Killed process 812 (postgres) total-vm:9000000kB, anon-rss:6291456kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:113 pgtables:1212kB oom_score_adj:0",
    f"{OOM}task_memcg=/system.slice/postgresql@16-main.service,task=postgres,pid=812,uid=113",
)
OWN_LIMIT = (
    "spark1 kernel: Memory cgroup out of memory: Killed process 900 (node) total-vm:900000kB, anon-rss:524288kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1212kB oom_score_adj:0",
    "spark1 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/system.slice/build.service,task_memcg=/system.slice/build.service,task=node,pid=900,uid=1000",
)
EARLYOOM = (
    'spark1 earlyoom[1233]: sending SIGTERM to process 29410 uid 0 "VLLM::EngineCor": badness 1264, VmRSS 105372 MiB'
)
OOMD = (
    "spark1 systemd-oomd[812]: Killed /system.slice/ollama.service due to memory pressure for /system.slice being "
    "72.14% > 60.00% for > 30s with reclaim activity"
)
NVRM = (
    "spark1 kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned "
    "from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
XID_79 = "spark1 kernel: NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = (
    "spark1 kernel: NVRM: Xid (PCI:000f:01:00): 31, pid=62104, name=python3, Ch 00000008, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC5 GPCCLIENT_T1_3 faulted @ 0x7f6c_8a000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
)
REFUSED = (
    "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired GPU memory "
    "utilization (0.85, 103.38 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
DOWN = {"units": {COPY: {"load": "loaded", "active": "activating", "sub": "auto-restart", "enabled": "enabled"}}}


def test_a_well_kept_box_has_no_finding() -> None:
    assert memory_findings(memory_told()) == []


@pytest.mark.parametrize(
    "told",
    [
        memory_told(gpus=None, apps=None),
        memory_told(gpus={"rc": None, "err": "nvidia-smi did not end within 15 s"}, apps={"rc": None}),
        memory_told(gpus={"rc": 9, "out": "NVIDIA-SMI has failed"}, apps={"rc": 9}),
        memory_told(apps={"rc": 0, "out": "4711, VLLM::EngineCore, [N/A]\n"}),
        memory_told(container=True, swappiness=100, pressure=CALM.replace("avg300=0.00", "avg300=60.00")),
        memory_told(pressure=None, swappiness=None, swaps="", units="", meminfo={}),
        MemoryTold(),
    ],
    ids=["no nvidia-smi", "it hangs", "it fails", "N/A of a process", "a container", "no psi", "nothing is known"],
)
def test_what_is_not_known_is_no_finding(told: MemoryTold) -> None:
    assert memory_findings(told) == []


# symptom: (what box a tells, changes of its facts and of fleet.yaml, code, words of the finding and of its fix)
SYMPTOMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str, str]] = {
    "memory: is more than the box has": (
        {},
        {},
        {"boxes__a__memory": "128GiB"},
        "M01",
        "fleet.yaml says memory 128.0 GiB for a, which has 121.7 GiB",
        f"write memory: {TOTAL // 2**20}MiB under a in fleet.yaml",
    ),
    "shares of more than the file says": (
        {},
        {},
        {"boxes__a__memory": "106GiB"},
        "M01",
        "whose engines find 121.7 GiB and take shares of that",
        f"write memory: {TOTAL // 2**20}MiB",
    ),
    "an engine holds 0.95 of the memory by its processes and nvidia-smi together": (
        {"processes": [engine_process(anonymous=12 * GIB)]},
        {},
        {},
        "M02",
        "engines hold 93.3 GiB and their part is 87.0 GiB: 6.3 GiB of the reserve is theirs",
        "write reserve: 39GiB under a in fleet.yaml (it is 32.0 GiB)",
    ),
    "an engine in a container of docker holds too much": (
        {"processes": [engine_process(anonymous=12 * GIB, unit=f"docker-{'0' * 64}.scope")]},
        {},
        {},
        "M02",
        "engines hold 93.3 GiB and their part is 87.0 GiB",
        "write reserve: 39GiB under a in fleet.yaml",
    ),
    "databases took more than is left, by the guard's notes": (
        {},
        others(services={"postgresql.service": 34 * GIB}, together=34 * GIB, total=34 * GIB),
        {},
        "M03",
        "postgresql.service would be hurt first",
        "write reserve: 37GiB",
    ),
    "another process holds memory of the GPU": (
        {
            "apps": {"rc": 0, "out": f"{APPS['out']}9001, /usr/bin/python3, 29000\n"},
            "owners": {9001: {"unit": "comfyui.service", "comm": "python3"}},
        },
        others(),
        {},
        "M04",
        "/usr/bin/python3 (pid 9001, comfyui.service) holds 28.3 GiB of the GPU's memory, and engines leave 32",
        "systemctl stop comfyui.service on a",
    ),
    "page cache that CUDA does not see as free": (
        {"processes": [], "apps": {"rc": 0}, **meminfo(MemFree=36 * GIB, MemAvailable=115 * GIB)},
        {},
        {},
        "M05",
        "would find 36.0 GiB free, because the page cache holds 79.0 GiB",
        "write page_cache: drop under a in fleet.yaml",
    ),
    "a share of 83 GiB that reaches 112 GiB while it starts": (
        {},
        others(services={"postgresql.service": 12 * GIB}, together=12 * GIB, total=12 * GIB),
        {
            "models__qwen__measured": {
                "a": {
                    "weights": "71GiB",
                    "overhead": "12GiB",
                    "peak": "10GiB",
                    "batched_tokens": 2048,
                    "at": "2026-11-01",
                }
            }
        },
        "M06",
        "replicas/qwen@a takes 113.0 GiB while it starts, beside 12.0 GiB of others",
        "--max-num-batched-tokens=2048",
    ),
    "an engine finds 36.75 of 103.38 GiB free and is started 35 times": (
        {"refused": {COPY: {**lines(REFUSED), "count": 35}}, "processes": [], "apps": {"rc": 0}},
        DOWN,
        {},
        "M07",
        f"{COPY} gave up starting 35 times within a day: it found 36.75 GiB free and asks for 103.38 GiB",
        f"systemctl stop {COPY}",
    ),
    "available memory fell far below what the guard acts at": (
        {},
        others(lowest=GIB),
        {"guard": {}},
        "M08",
        "available memory fell to 1.0 GiB, and the guard acts below 4.0 GiB",
        "write a larger reserve: under a in fleet.yaml (it is 32.0 GiB)",
    ),
    "tasks stand still": (
        {
            "pressure": CALM.replace(
                "full avg10=0.00 avg60=0.00 avg300=0.00", "full avg10=44.20 avg60=31.07 avg300=18.40"
            )
        },
        {},
        {},
        "M09",
        "all tasks stood still for 18 % of the last five minutes",
        "systemd-cgtop -m",
    ),
    "an engine is in swap": (
        {"processes": [engine_process(swap=3 * GIB)]},
        {},
        {},
        "M10",
        f"3.0 GiB of {COPY} are in swap",
        f"systemctl show -p MemorySwapMax {COPY}",
    ),
    "swap is nearly used up": (meminfo(SwapFree=GIB), {}, {}, "M11", "1.0 GiB of 16.0 GiB of swap are left", "VmSwap"),
    "the kernel is eager to swap": (
        {"swappiness": 100},
        {},
        {},
        "M12",
        "vm.swappiness is 100, and swap is on /swap.img",
        "echo 'vm.swappiness = 10'",
    ),
    "the kernel ended the engine": (
        journal(killed=lines(*KILLED_ENGINE)),
        {},
        {},
        "M13",
        f"{COPY} was ended by the kernel on ",
        "write a larger reserve: under a in fleet.yaml (it is 32.0 GiB), then `fleetctl apply`; write guard: {}",
    ),
    "the kernel ended a database": (
        journal(killed=lines(*KILLED_DATABASE)),
        {},
        {},
        "M13",
        "postgresql@16-main.service was ended by the kernel",
        "guard: {protect: [{unit: postgresql@16-main.service, memory: 6GiB, boxes: [a]}]}",
    ),
    "earlyoom ended the engine": (
        journal(killed=lines(EARLYOOM)),
        {},
        {},
        "M13",
        "VLLM::EngineCor was ended by earlyoom",
        "write a larger reserve:",
    ),
    "systemd-oomd ended a service": (
        journal(killed=lines(OOMD)),
        {},
        {},
        "M13",
        "ollama.service was ended by systemd-oomd",
        "write a larger reserve:",
    ),
    "NVRM: Out of memory [NV_ERR_NO_MEMORY]": (
        journal(no_memory={**lines(NVRM), "count": 198}),
        {},
        {},
        "M14",
        "the driver of the GPU got no memory 198 times within a week",
        "page_cache: drop under a",
    ),
    "Xid 79: the GPU has fallen off the bus": (
        journal(xid=lines(XID_79)),
        {},
        {},
        "M15",
        "Xid 79 (the GPU has fallen off the bus) of PCI:000f:01:00 once",
        "fleetctl drain a; systemctl reboot on a",
    ),
    "earlyoom with a mark above what engines leave": (
        {"daemons": {"earlyoom": ["/usr/bin/earlyoom", "-r", "3600", "-m", "25,20", "-s", "100"]}},
        others(),
        {},
        "M16",
        "ends a process when less than 30.4 GiB are available and the swap is nearly used up; engines leave 32",
        "systemctl disable --now earlyoom.service; write guard: {}",
    ),
    "systemd-oomd may end engines": (
        {
            "daemons": {"systemd-oomd": ["/usr/lib/systemd/systemd-oomd"]},
            "units": f"Id={COPY}\nManagedOOMMemoryPressure=auto\n\nId=system.slice\nManagedOOMMemoryPressure=kill\n",
        },
        {},
        {},
        "M16",
        "systemd-oomd may end engines: system.slice has ManagedOOMMemoryPressure=kill",
        "systemctl set-property system.slice ManagedOOMMemoryPressure=auto",
    ),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_symptom_is_told_with_its_fix_and_nothing_else_is(symptom: str) -> None:
    told, facts, changes, code, says, fix = SYMPTOMS[symptom]
    found = memory_findings(memory_told(**told), scene(facts=facts, **changes))
    assert [(one.code, one.box) for one in found] == [(code, "a")], found
    assert says in found[0].says and fix in found[0].fix and found[0].evidence, found[0]


GUARDED = {"guard": {"protect": [{"unit": "postgresql.service", "memory": "8GiB"}]}}
KEPT = (
    f"Id=postgresql.service\nLoadState=loaded\nSlice=system.slice\nMemoryMin={8 * GIB}\n\n"
    f"Id=system.slice\nLoadState=loaded\nMemoryMin={8 * GIB}\n"
)


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (KEPT, []),
        (KEPT.replace(str(8 * GIB), "infinity"), []),
        (KEPT.replace(str(8 * GIB), "0", 1), ["postgresql.service should keep 8.0 GiB and keeps 0.0 GiB"]),
        (KEPT[: KEPT.index("Id=system")] + "Id=system.slice\nMemoryMin=0\n", ["system.slice keeps 0.0 GiB, and the"]),
        (KEPT.replace("Slice=system.slice", "Slice=db.slice"), ["postgresql.service is in db.slice, above which"]),
        (
            KEPT.replace("loaded", "not-found", 1),
            ["guard: protect: names postgresql.service, and a has no such service"],
        ),
        ("", []),
    ],
    ids=["kept", "infinity", "missing", "slice", "another slice", "misspelled", "not known"],
)
def test_a_protected_service_keeps_its_memory(shown: str, says: list[str]) -> None:
    where = scene(**GUARDED)
    found = [one for one in memory_findings(memory_told(units=shown), where) if one.box == "a"]
    assert [one.code for one in found] == ["M17"] * len(says)
    assert all(word in one.says for word, one in zip(says, found, strict=True)), found


@pytest.mark.parametrize(
    ("text", "at", "severity"),
    [
        (KILLED_ENGINE, NOW - 600, Severity.WARNING),
        (KILLED_ENGINE, NOW - 3 * DAY, Severity.NOTE),
        (OWN_LIMIT, NOW - 600, Severity.NOTE),
    ],
    ids=["today", "three days ago", "at its own limit"],
)
def test_what_was_ended_long_ago_or_by_its_own_limit_is_a_note(
    text: tuple[str, ...], at: float, severity: Severity
) -> None:
    (found,) = memory_findings(memory_told(**journal(killed=lines(*text, at=at))))
    assert (found.code, found.severity) == ("M13", severity)


def test_kernel_and_systemd_report_one_death_and_several_of_a_unit_are_one_finding() -> None:
    again = lines(*KILLED_ENGINE, *KILLED_DATABASE)
    again["lines"] += lines(*KILLED_ENGINE, at=NOW - DAY / 2)["lines"]
    found = memory_findings(memory_told(**journal(killed=again)))
    assert sorted(one.where for one in found) == [COPY, "postgresql@16-main.service"]
    (engine,) = [one for one in found if one.where == COPY]
    assert "the last of 2 times within a week" in engine.says


@pytest.mark.parametrize(
    ("text", "severity"),
    [((XID_79,), Severity.ERROR), ((XID_31,), Severity.NOTE), ((XID_31.replace(" 31,", " 62,"),), Severity.ERROR)],
)
def test_a_fault_of_the_gpu_is_told_from_one_of_a_program(text: tuple[str, ...], severity: Severity) -> None:
    (found,) = memory_findings(memory_told(**journal(xid=lines(*text))))
    assert (found.code, found.severity) == ("M15", severity)
    old = memory_findings(memory_told(**journal(xid=lines(*text, at=NOW - 3 * DAY))))
    assert [one.severity for one in old] == [Severity.NOTE]


def test_a_start_that_was_refused_and_then_went_well_is_a_note() -> None:
    (found,) = memory_findings(memory_told(refused={COPY: lines(REFUSED)}))
    assert (found.code, found.severity) == ("M07", Severity.NOTE) and "it runs now" in found.says


def test_a_share_is_of_the_gpu_alone_where_it_has_memory_of_its_own() -> None:
    card = {"rc": 0, "out": "0, NVIDIA H200, 143771, 120000, 580.95.05\n"}
    where = scene(boxes__a__memory="139GiB")
    held = {"rc": 0, "out": "4711, VLLM::EngineCore, 106000\n"}
    told = memory_told(gpus=card, apps=held, processes=[engine_process(anonymous=60 * GIB)])
    assert memory_findings(told, where) == []
    held["out"] = "4711, VLLM::EngineCore, 125000\n"
    (found,) = memory_findings(memory_told(gpus=card, apps=held), where)
    assert found.code == "M02" and "122.1 GiB on the GPU" in "".join(found.evidence)


@pytest.mark.parametrize(
    ("words", "percent"),
    [
        ((), 10.0),
        (("-r", "60"), 10.0),
        (("-m", "4"), 4.0),
        (("-m", "4,2"), 4.0),
        (("-m4,2",), 4.0),
        (("-M", "524288,262144"), 0.5),
        (("-m", "lots"), 10.0),
        (("-m",), 10.0),
    ],
)
def test_the_mark_of_earlyoom_is_read_from_its_command_line(words: tuple[str, ...], percent: float) -> None:
    assert mark_of(("/usr/bin/earlyoom", *words), 100 * GIB) == int(percent * GIB)


def test_a_mark_below_what_engines_leave_is_none_of_doctors_business() -> None:
    daemons = {"earlyoom": ["/usr/bin/earlyoom", "-m", "3,1"]}
    assert memory_findings(memory_told(daemons=daemons), scene(facts=others())) == []


def test_n_a_of_a_gb10_is_unknown_and_its_processes_have_sizes() -> None:
    (gpu,) = gpus_of(Said.model_validate(GPUS)) or []
    assert (gpu.name, gpu.total, gpu.used, gpu.driver) == ("NVIDIA GB10", None, None, "580.95.05")
    assert shares_memory([gpu])
    (app,) = apps_of(Said.model_validate(APPS)) or []
    assert (app.pid, app.used) == (4711, SERVED * 2**20)


@pytest.mark.parametrize(
    "out",
    [
        "",
        "\n\n",
        "No devices were found\n",
        "index, name, memory.total [MiB]\n",
        "0\n",
        ",,,,\n",
        "99999999999999999999, x, 5\n",
        "4711, a, b, c, d, e, [Not Supported]\n",
        "4711, x, 99999999999999999999999999\n",
        "\x1b[31m4711, \udcff, -5\n",
    ],
)
def test_odd_words_of_nvidia_smi_are_never_a_traceback_and_never_a_size(out: str) -> None:
    said = Said.model_construct(rc=0, out=out, err="")
    assert all(gpu.total is None for gpu in gpus_of(said) or [])
    assert all(app.used is None for app in apps_of(said) or [])


def test_earlyoom_beside_a_guard_can_be_turned_off_and_on_again() -> None:
    unit = {"load": "loaded", "active": "active", "sub": "running", "enabled": "enabled"}
    guarded = scene(facts={"units": {"earlyoom.service": unit}}, guard={})
    (found,) = memory_findings(memory_told(daemons={"earlyoom": ["earlyoom"]}), guarded)
    assert (found.code, found.where) == ("M16", "earlyoom.service")
    assert found.says == "earlyoom.service is active beside the guard"
    assert found.remedy is not None
    assert found.remedy.do == (("systemctl", "disable", "--now", "earlyoom.service"),)
    assert found.remedy.undo == (("systemctl", "enable", "--now", "earlyoom.service"),)


@given(
    st.lists(
        st.one_of(st.text(max_size=200), st.sampled_from([*KILLED_ENGINE, *OWN_LIMIT, EARLYOOM, OOMD])), max_size=9
    )
)
def test_whatever_stands_in_a_journal_is_read_without_a_traceback(texts: list[str]) -> None:
    found = deaths(Line(at=NOW - number, text=text) for number, text in enumerate(texts))
    assert len(found) <= len(texts)
    told = memory_told(**journal(killed=lines(*texts), xid=lines(*texts), no_memory=lines(*texts[:3])))
    assert all(one.says and one.fix for one in memory_findings(told, WELL))
