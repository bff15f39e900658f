"""The API server process `vllm`: binds, starts the engine core, serves, stops."""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

from . import VERSION, log
from .api import Api
from .arguments import ServeArgs
from .core import Core
from .engine import Engine
from .errors import ApiError, engine_dead
from .httpd import HttpServer
from .process import Child, fork, set_name
from .settings import Control

WATCHDOG_SECONDS = 5.0
COLLECTIVE_LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:535] Connection closed by peer"


class InterruptedLoadError(Exception):
    """SIGTERM or SIGINT while the engine was loading."""


def run_server(args: ServeArgs, control: Control, api: type[Api] = Api) -> int:
    """Run the head or only rank of an engine until it stops; returns the exit status. ``api`` is how it answers."""
    set_name("vllm")
    log.info("api_utils.py:347", f"vLLM server version {VERSION}, serving model {args.model}")
    log.info("api_utils.py:286", f"non-default args: {shown(args)}")
    try:
        address, sock = bind(args)
    except OSError as error:
        log.traceback(
            ["vllm/entrypoints/launchers/api_server/entry.py 171 run_server"],
            f"OSError: [Errno {error.errno}] {error.strerror}",
        )
        return 1
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    core = fork("EngineCore", lambda link: Core(args, control, link).run())
    try:
        cache_tokens = await_ready(core, control)
    except InterruptedLoadError:
        core.stop()
        core.wait()
        log.traceback(
            ["vllm/entrypoints/launchers/api_server/entry.py 168 run_server"], "KeyboardInterrupt: terminated"
        )
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if cache_tokens is None:
        return 0 if control.now().zero_exit else 1
    return asyncio.run(Server(args, control, core, cache_tokens, api).run(sock, address))


def shown(args: ServeArgs) -> dict[str, object]:
    """The given options for the log, keys hidden."""
    return {name: "***" if name in ("api_key", "hf_token") else value for name, value in args.given.items()}


def interrupt(*_: object) -> None:
    """Signal handler while loading."""
    raise InterruptedLoadError


def bind(args: ServeArgs) -> tuple[str, socket.socket]:
    """A bound socket that does not listen yet, and its address in words. Raises OSError."""
    if args.uds:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(args.uds)
        return f"unix:{args.uds}", sock
    v6 = ":" in args.host
    # The protocol is named because asyncio turns Nagle's algorithm off only then; uvloop, under vLLM, always does.
    sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((args.host, args.port))
    host = f"[{args.host}]" if v6 else args.host or "0.0.0.0"
    return f"http://{host}:{args.port}", sock


def await_ready(core: Child, control: Control) -> int | None:
    """Wait for the engine core; its cache size in tokens, or None when it failed or took too long."""
    began = time.monotonic()
    while not core.link.closed:
        for message in core.link.receive(0.2):
            if message.get("event") == "ready":
                return int(str(message["cache_tokens"]))
        limit = control.now().engine_ready_timeout
        if time.monotonic() - began > limit:
            core.stop()
            core.wait()
            log.traceback(
                ["vllm/v1/engine/core_client.py 742 __init__"],
                "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by "
                f"slow weight loading for large models. Waited {limit:.0f}s (configured by "
                "VLLM_ENGINE_READY_TIMEOUT_S). To increase the timeout, set the environment variable: "
                "VLLM_ENGINE_READY_TIMEOUT_S=<seconds>",
            )
            return None
    log.traceback(
        [
            "vllm/v1/engine/core_client.py 676 __init__",
            "vllm/v1/engine/utils.py 1431 wait_for_engine_startup",
        ],
        "RuntimeError: Engine core initialization failed. See root cause above. "
        f"Failed core proc(s): {{'EngineCore': {core.wait()}}}",
    )
    return None


class Server:
    """The serving part of the process's life."""

    def __init__(self, args: ServeArgs, control: Control, core: Child, cache_tokens: int, api: type[Api]) -> None:
        self.args = args
        self.api = api
        self.control = control
        self.core = core
        self.engine = Engine(args, control, cache_tokens)
        self.finished = asyncio.Event()
        self.gone = asyncio.Event()
        self.terminating = False
        self.follower_lost = False
        self.status = 0

    async def run(self, sock: socket.socket, address: str) -> int:
        """Listen, serve until SIGTERM or the engine's death, stop in order; returns the exit status."""
        for name, path in self.args.lora_modules.items():
            try:
                self.engine.adapters.load(name, path)
            except ApiError as error:
                where = "vllm/entrypoints/openai/models/serving.py 148 init_static_loras"
                log.traceback([where], f"ValueError: {error}")
                await self.stop_core_early()
                return 1
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGINT, self.terminate)
        loop.add_reader(self.core.link.sock, self.hear_core)
        api = self.api(self.engine, self.before_completion)
        keep_alive = float(os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5"))
        http = HttpServer(api.handle, keep_alive, self.args.access_log)
        log.info("entry.py:140", f"Starting vLLM server on {address}")
        log.plain(f"INFO:     Started server process [{os.getpid()}]")
        log.plain("INFO:     Waiting for application startup.")
        try:
            await http.start(sock)
        except OSError as error:
            log.plain(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address: {error.strerror}")
            self.status = 1
            await self.stop_core()
            return self.status
        log.plain("INFO:     Application startup complete.")
        tasks = [loop.create_task(self.engine.run())]
        if self.args.log_stats:
            tasks.append(loop.create_task(log_stats(self.engine)))
        await self.finished.wait()
        if self.terminating:
            await self.wind_down()
        log.plain("INFO:     Shutting down")
        await self.stop_core()
        await http.stop()
        for task in tasks:
            task.cancel()
        if self.args.uds:
            Path(self.args.uds).unlink(missing_ok=True)
        log.plain("INFO:     Application shutdown complete.")
        log.plain(f"INFO:     Finished server process [{os.getpid()}]")
        return self.status

    async def stop_core_early(self) -> None:
        """Stop the engine core before it was listened to."""
        self.core.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.core.wait)

    def terminate(self) -> None:
        """SIGTERM or SIGINT."""
        if not self.terminating:
            log.info("launcher.py:251", "[shutdown] API server: shutdown triggered")
        self.terminating = True
        self.finished.set()

    async def wind_down(self) -> None:
        """Abort running requests, or let them finish for --shutdown-timeout seconds."""
        limit = self.args.shutdown_timeout
        mode = "drain" if limit else "abort"
        log.info("launcher.py:270", f"[shutdown] API server: stopping engine client mode={mode} timeout={limit}s")
        deadline = time.monotonic() + limit
        while limit and self.engine.busy() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.engine.abort_all()

    async def stop_core(self) -> None:
        """Stop the engine core and wait for its end without blocking the loop."""
        self.core.stop()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.core.link.sock)
        await loop.run_in_executor(None, self.core.wait)

    def hear_core(self) -> None:
        """A message from the engine core, or its death."""
        for message in self.core.link.receive(0):
            self.follower_lost = self.follower_lost or message.get("event") == "follower_lost"
        if self.core.link.closed:
            asyncio.get_running_loop().remove_reader(self.core.link.sock)
            log.log(
                "WARNING",
                "core_client.py:817",
                "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            )
            self.engine.die()
            self.gone.set()
            # vLLM notices at the next request, or by a watchdog that looks every 5 s.
            asyncio.get_running_loop().call_later(WATCHDOG_SECONDS, self.finished.set)

    async def before_completion(self, number: int) -> None:
        """Deaths that show at a request: a lost follower, or the faults. Raises ApiError 500."""
        settings = self.control.now()
        if self.follower_lost and not self.engine.dead:
            await self.kill_core(COLLECTIVE_LOST)
        elif not self.engine.dead and (settings.die_at_first_request or settings.die_at_request == number):
            self.status = 0 if settings.zero_exit else 1
            await self.kill_core("torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler.")
        if self.engine.dead:
            self.finished.set()
            raise engine_dead()

    async def kill_core(self, reason: str) -> None:
        """Make the engine core die of `reason` and wait until that has been noticed."""
        self.core.link.send(do="die", reason=reason)
        await self.gone.wait()


async def log_stats(engine: Engine) -> None:
    """The throughput line, every VLLM_LOG_STATS_INTERVAL (10) seconds; left out while nothing happens."""
    interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
    counters = engine.metrics.counters
    last = dict(counters)
    was_busy = False
    while True:
        await asyncio.sleep(interval)
        made = {name: counters[name] - last[name] for name in counters}
        last = dict(counters)
        prompt, generated = made["prompt_tokens"] / interval, made["generation_tokens"] / interval
        busy = engine.busy() or prompt + generated > 0
        if not busy and not was_busy:
            continue
        was_busy = busy
        queried = counters["prefix_cache_queries"]
        hit_rate = counters["prefix_cache_hits"] / queried if queried else 0.0
        log.info(
            "loggers.py:310",
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generated:.1f} tokens/s, Running: {len(engine.running)} reqs, "
            f"Waiting: {len(engine.waiting)} reqs, GPU KV cache usage: {engine.cache_usage() * 100:.1f}%, "
            f"Prefix cache hit rate: {hit_rate * 100:.1f}%",
        )
        drafted = made.get("spec_decode_num_draft_tokens", 0.0)
        if drafted:
            accepted, drafts = made["spec_decode_num_accepted_tokens"], made["spec_decode_num_drafts"]
            log.info(
                "metrics.py:115",
                f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
                f"Accepted throughput: {accepted / interval:.2f} tokens/s, "
                f"Drafted throughput: {drafted / interval:.2f} tokens/s, "
                f"Accepted: {accepted:.0f} tokens, Drafted: {drafted:.0f} tokens, "
                f"Avg Draft acceptance rate: {accepted / drafted * 100:.1f}%",
            )
