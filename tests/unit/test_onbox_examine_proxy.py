"""What a box tells of its proxy: counts from recorded lines, other proxies' files, states in HAProxy's table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetctl.onbox import haproxy, otherproxies
from fleetctl.onbox.proxytraffic import Traffic

POST = (
    '{"client":"192.0.2.7","key":"-","method":"POST","path":"\\/v1\\/chat\\/completions","status":200,'
    '"backend":"qwen","server":"%s","held_ms":0,"idle_ms":0,"queue_ms":0,"connect_ms":0,"first_byte_ms":21,'
    '"total_ms":22,"bytes":76,"retries":"0","queued":0,"end":"--"}'
)
GET = (
    '{"client":"%s","key":"-","method":"GET","path":"%s","status":%d,"backend":"qwen","server":"replicas-a",'
    '"held_ms":0,"idle_ms":0,"queue_ms":0,"connect_ms":0,"first_byte_ms":1,"total_ms":1,"bytes":9,"retries":"0",'
    '"queued":0,"end":"--"}'
)
# A path that a client made up to look like more.
FORGED = GET % ("192.0.2.6", '\\/x\\",\\"backend\\":\\"qwen\\",\\"server\\":\\"replicas-b\\"\\/metrics', 404)


def test_requests_are_counted_by_server_since_all_were_up_and_reads_of_metrics_by_client() -> None:
    traffic = Traffic({"qwen": 1000.0})
    lines = [(1005.0, POST % "replicas-a"), (1004.0, POST % "replicas-b"), (1003.0, POST % "<lua.aloud>")]
    lines += [(1002.0, GET % ("192.0.2.9", "\\/metrics", 200)), (1001.0, GET % ("192.0.2.9", "\\/v1\\/models", 200))]
    lines += [(1001.0, GET % ("192.0.2.9", "\\/metrics\\/", 404)), (1000.5, FORGED), (1000.4, "{metrics: damaged")]
    lines += [(999.0, POST % "replicas-a"), (998.0, "Server qwen/replicas-a is UP, reason: Layer7 check passed")]
    for at, line in lines:
        traffic.add(f"{at:.3f} box haproxy[41]: {line}".encode())
    traffic.add(b"-- no line of the log --")
    told = traffic.told()
    assert told["sent"] == {"qwen": {"replicas-a": 1, "replicas-b": 1}}
    read = told["metrics"]["192.0.2.9"]
    assert (read["count"], read["answered"], read["servers"]) == (2, 1, {"replicas-a": 2})
    assert (read["first"], read["last"]) == (1001.0, 1002.0)
    assert (told["lines"], told["oldest"]) == (10, 998.0)


def test_the_table_of_states_is_read_by_its_heading() -> None:
    text = (
        "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_port\n"
        "3 qwen 1 replicas-a 10.0.0.1 2 0 8000\n3 qwen 2 replicas-b 10.0.0.2 0 1 8000\n3 cut\n"
    )
    rows = haproxy.state_rows(text)
    assert [(row["srv_name"], row["srv_addr"], row["srv_admin_state"]) for row in rows] == [
        ("replicas-a", "10.0.0.1", "0"),
        ("replicas-b", "10.0.0.2", "1"),
    ]
    assert haproxy.state_rows("") == haproxy.state_rows("1\n") == []


def test_the_files_of_nginx_are_told_as_nginx_itself_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = tmp_path / "nginx.conf"
    (tmp_path / "conf.d").mkdir()
    main.write_text("http { include conf.d/*.conf; }\n")
    (tmp_path / "conf.d/model.conf").write_text("upstream x { server 10.0.0.1:8000; }\n")
    monkeypatch.setattr(otherproxies, "PROGRAMS", {"nginx": ("nginx.service", [str(main)])})
    monkeypatch.setattr(otherproxies, "INCLUDED", (f"{tmp_path}/conf.d/*",))
    told = otherproxies._text("nginx", 0)
    assert told is not None
    path, text = told
    assert path == str(main)
    assert text.startswith(f"# configuration file {main}:\nhttp {{")
    assert f"# configuration file {tmp_path}/conf.d/model.conf:\nupstream" in text
    main.unlink()
    (tmp_path / "conf.d/model.conf").unlink()
    assert otherproxies._text("nginx", 0) is None


def test_files_that_a_command_line_names_are_the_ones_that_count() -> None:
    assert otherproxies._named(0, "haproxy") == []
    assert otherproxies._named(os.getpid(), "nginx") == []
