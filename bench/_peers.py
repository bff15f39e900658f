"""Other proxies to measure beside: nginx with the settings of a known outage, and vllm-router as it comes.

Each runs as a process of this machine in the network of the box that has fleetctl's proxy, so that its packets go the
same ways, in front of the same engines, and is ended by the bench.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from _common import BenchError, environment, make_venv, run, say, version_of
from _fleet import healthy

if TYPE_CHECKING:
    from _fleet import Fleet

PORTS = {"nginx": 8081, "vllm-router": 8082}
METRICS_PORT = 8083

NGINX_CONF = """# The settings of a known outage; everything else as nginx has it by default.
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engines {{
{servers}
    }}
    server {{
        listen {address}:{port};
        location / {{
            proxy_pass http://engines;
            proxy_buffering on;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Peer:
    """A proxy that is installed: its name, version and program."""

    name: str
    version: str
    program: Path
    folder: Path

    @contextmanager
    def before(self, fleet: Fleet, engines: Sequence[str]) -> Iterator[str]:
        """The proxy runs in front of these engines (HOST:PORT); its URL. Raises BenchError when it does not answer."""
        self.folder.mkdir(exist_ok=True)
        box = fleet.boxes[0]
        argv = self._nginx(engines, box.address) if self.name == "nginx" else self._router(engines, box.address)
        inside = ["nsenter", f"--net={fleet.lab.network(box.name)}", "--", *argv]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        try:
            self._await(process, f"http://{box.address}:{PORTS[self.name]}")
            yield f"http://{box.address}:{PORTS[self.name]}"
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _nginx(self, engines: Sequence[str], address: str) -> list[str]:
        servers = "\n".join(f"        server {engine} max_fails=3 fail_timeout=30s;" for engine in engines)
        conf = self.folder / "nginx.conf"
        conf.write_text(NGINX_CONF.format(folder=self.folder, servers=servers, address=address, port=PORTS[self.name]))
        return [str(self.program), "-p", str(self.folder), "-c", str(conf), "-e", str(self.folder / "error.log")]

    def _router(self, engines: Sequence[str], address: str) -> list[str]:
        urls = [f"http://{engine}" for engine in engines]
        own = ["--host", address, "--port", str(PORTS[self.name]), "--prometheus-port", str(METRICS_PORT)]
        return [str(self.program), *own, "--log-level", "warning", "--worker-urls", *urls]

    def _await(self, process: subprocess.Popen[bytes], url: str) -> None:
        end = time.monotonic() + 60
        while not healthy(f"{url}/v1/models"):
            if process.poll() is not None or time.monotonic() > end:
                last = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise BenchError(f"{self.name} does not answer:\n{last}")
            time.sleep(0.1)


def install(folder: Path) -> list[Peer]:
    """The peers that can be had here; what cannot is said, with the reason, and left out."""
    peers = []
    for name, get in (("nginx", _get_nginx), ("vllm-router", _get_router)):
        try:
            peers.append(get(folder / name))
            say(f"{name} {peers[-1].version}")
        except (BenchError, OSError) as error:
            say(f"{name} is left out: {error}")
    return peers


def _get_nginx(folder: Path) -> Peer:
    """nginx of this machine, or the distribution's package unpacked here: installed, it would serve on port 80."""
    folder.mkdir(parents=True)
    found = shutil.which("nginx")
    if found is None:
        say("unpacking nginx")
        download = ["apt-get", "download", "-q", "nginx"]
        try:
            run(download, doing="downloading nginx", cwd=folder)
        except BenchError:
            run(["apt-get", "update", "-q"], doing="reading the package lists", env={**os.environ, "LC_ALL": "C"})
            run(download, doing="downloading nginx", cwd=folder)
        package = next(folder.glob("nginx_*.deb"))
        run(["dpkg-deb", "-x", str(package), str(folder / "root")], doing="unpacking nginx")
        found = str(folder / "root/usr/sbin/nginx")
    told = subprocess.run([found, "-v"], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise BenchError((told.stdout + told.stderr).strip())
    return Peer("nginx", told.stderr.strip().rpartition("/")[2], Path(found), folder / "run")


def _get_router(folder: Path) -> Peer:
    folder.mkdir(parents=True)
    binaries = make_venv(folder / "venv", "vllm-router")
    version = version_of(binaries, "vllm-router")
    return Peer("vllm-router", version, binaries / "vllm-router", folder / "run")
