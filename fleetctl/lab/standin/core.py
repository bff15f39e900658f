"""The process `VLLM::EngineCore`: meets the other ranks, loads, holds the memory, reports to its parent."""

import select
import time

from . import VERSION, log
from .arguments import ServeArgs
from .process import Child, Link, Memory, fork, orphaned
from .rendezvous import RendezvousError, gather
from .settings import Control, Settings

GIB = 2**30
SHARDS = 8
STORE_FRAME = "torch/distributed/rendezvous.py 190 _create_c10d_store"


class GoneError(Exception):
    """The parent told this process to stop, or is no longer there."""


class LoadFailedError(Exception):
    """Loading failed and the traceback is already in the log."""


def check_parent(link: Link, settings: Settings, wait: float = 0.0) -> None:
    """Raise GoneError when the parent asked for the end or died. An orphan stays here for ever."""
    for message in link.receive(wait):
        if message.get("do") == "stop":
            raise GoneError
    if link.closed:
        orphaned(settings)
        raise GoneError


def load(link: Link, control: Control) -> Memory:
    """Spend the load time, fill the memory meanwhile, log as vLLM does. Raises LoadFailedError, GoneError."""
    settings = control.now()
    started = time.monotonic()
    duration = settings.load_seconds + settings.slow_start
    log.info("gpu_model_runner.py:5048", "Starting to load model...")
    memory = Memory(settings.memory_bytes)
    shards = 0
    while settings.never_ready or time.monotonic() - started < duration:
        check_parent(link, settings, 0.02)
        elapsed = time.monotonic() - started
        if settings.exit_during_load is not None and elapsed >= settings.exit_during_load:
            fail_load()
        share = min(elapsed / duration, 1.0) if duration else 1.0
        memory.touch(share)
        while shards < int(share * SHARDS):
            shards += 1
            log.plain(
                f"Loading safetensors checkpoint shards: {100 * shards // SHARDS:3d}% Completed | "
                f"{shards}/{SHARDS} [{clock(elapsed)}<{clock(duration - elapsed)}, "
                f"{shards / max(elapsed, 0.001):5.2f}it/s]"
            )
        settings = control.now()
    memory.touch(1.0)
    took = time.monotonic() - started
    log.info(
        "gpu_model_runner.py:5150",
        f"Model loading took {settings.weights_bytes / GIB:.2f} GiB memory and {took:.6f} seconds",
    )
    return memory


def clock(seconds: float) -> str:
    """`MM:SS`, as the progress bar shows it."""
    whole = max(0, int(seconds))
    return f"{whole // 60:02d}:{whole % 60:02d}"


def fail_load() -> None:
    """Log what vLLM logs when the engine core cannot start, then raise LoadFailedError."""
    log.error("core.py:1510", "EngineCore failed to start.")
    log.traceback(
        [
            "vllm/v1/engine/core.py 1469 run_engine_core",
            "vllm/v1/engine/core.py 141 __init__",
            "vllm/v1/worker/gpu_worker.py 512 load_model",
        ],
        "RuntimeError: CUDA error: out of memory",
        "core.py:1510",
    )
    raise LoadFailedError


def run_worker(link: Link, control: Control) -> int:
    """A `VLLM::Worker_TP<rank>` on the head's box: loads, says so, and holds the memory until told."""
    try:
        memory = load(link, control)
        link.send(event="loaded")
        while memory:
            check_parent(link, control.now(), 1.0)
    except GoneError:
        time.sleep(control.now().stop_seconds)
        return 0
    except LoadFailedError:
        pass
    return 1


class Core:
    """The engine core of the head; `run` is the life of its process."""

    def __init__(self, args: ServeArgs, control: Control, link: Link) -> None:
        self.args = args
        self.control = control
        self.link = link
        self.followers: dict[int, Link] = {}
        self.worker: Child | None = None
        self.memory: Memory | None = None

    def run(self) -> int:
        """Load and hold; returns the exit status of the process."""
        try:
            self.start()
            self.hold()
        except GoneError:
            self.stop()
            return 0
        except RendezvousError as error:
            log.error("core.py:1510", "EngineCore failed to start.")
            log.traceback([STORE_FRAME], str(error), "core.py:1510")
        except LoadFailedError:
            pass
        if self.worker:
            self.worker.kill()
        return 1

    def start(self) -> None:
        """Meet the ranks, load, and report ready."""
        args, began = self.args, time.monotonic()
        log.info("core.py:133", f"Initializing a V1 LLM engine (v{VERSION}) with config: model={args.model!r}")
        if args.nnodes > 1:
            self.meet_followers()
        if args.tensor_parallel_size * args.pipeline_parallel_size > 1:
            self.worker = fork("Worker_TP0", lambda link: run_worker(link, self.control))
            self.await_loaded([self.worker.link])
        else:
            self.memory = load(self.link, self.control)
        self.await_loaded(list(self.followers.values()))
        self.report(time.monotonic() - began)

    def meet_followers(self) -> None:
        """Wait for all ranks, logging the begin and the end as the real engine does."""
        began = time.monotonic()
        log.info("parallel_state.py:1823", "Init torch distributed begin.")
        self.followers = gather(self.args, self.control.now(), lambda: check_parent(self.link, self.control.now()))
        took = time.monotonic() - began
        log.info("parallel_state.py:1823", f"Init torch distributed ends. elapsed={took:.2f} s")

    def await_loaded(self, links: list[Link]) -> None:
        """Wait until each rank says it has loaded. Raises LoadFailedError when one is lost before that."""
        pending = list(links)
        while pending:
            check_parent(self.link, self.control.now())
            for link in list(pending):
                if any(message.get("event") == "loaded" for message in link.receive(0.02)):
                    pending.remove(link)
                elif link.closed:
                    log.traceback(
                        ["vllm/v1/executor/multiproc_executor.py 818 wait_for_ready"],
                        "Exception: WorkerProc initialization failed due to an exception in a background "
                        "process. See stack trace for root cause.",
                        "core.py:1510",
                    )
                    raise LoadFailedError

    def report(self, took: float) -> None:
        """Log the cache size and tell the parent that the engine is ready."""
        settings, args = self.control.now(), self.args
        tokens = settings.cache_tokens * args.nnodes
        context = args.max_model_len or settings.max_model_len
        if args.kv_cache_memory_bytes is None:
            log.info("gpu_worker.py:759", f"Available KV cache memory: {settings.cache_bytes / GIB:.2f} GiB")
        else:
            log.info(
                "gpu_worker.py:669",
                f"Initial free memory 114.65 GiB, reserved {args.kv_cache_memory_bytes / GIB:.2f} GiB memory for KV "
                "Cache as specified by kv_cache_memory_bytes config and skipped memory profiling.",
            )
        log.info(
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {tokens:,} tokens, "
            f"Maximum concurrency for {context:,} tokens per request: {tokens / context:.2f}x",
        )
        log.info("core.py:402", f"init engine (profile, create kv cache, warmup model) took {took:.2f} s")
        self.link.send(event="ready", cache_tokens=tokens)

    def hold(self) -> None:
        """Keep the memory; notice lost ranks and a dead worker. Raises GoneError or LoadFailedError."""
        while True:
            links = [self.link, *self.followers.values()] + ([self.worker.link] if self.worker else [])
            ready = select.select([link.sock for link in links], [], [], 1.0)[0]
            if self.link.sock in ready:
                self.obey()
            for rank, link in list(self.followers.items()):
                if link.sock in ready:
                    link.receive(0)
                    if link.closed:
                        del self.followers[rank]
                        # The engine itself notices a lost rank only at the next request.
                        self.link.send(event="follower_lost", rank=rank)
            if self.worker and self.worker.link.sock in ready:
                self.worker.link.receive(0)
                if self.worker.link.closed:
                    worker_died(self.worker)
                    raise LoadFailedError

    def obey(self) -> None:
        """Do what the parent says: stop, or die as from an error. Raises GoneError or LoadFailedError."""
        for message in self.link.receive(0):
            if message.get("do") == "stop":
                raise GoneError
            if message.get("do") == "die":
                log.error("core.py:1512", "EngineCore encountered a fatal error.")
                log.traceback(
                    [
                        "vllm/v1/engine/core.py 1478 run_engine_core",
                        "vllm/v1/engine/core.py 1511 run_busy_loop",
                    ],
                    str(message["reason"]),
                    "core.py:1512",
                )
                raise LoadFailedError
        if self.link.closed:
            orphaned(self.control.now())
            raise GoneError

    def stop(self) -> None:
        """Let the memory go, which takes `stop_seconds` if the settings say so."""
        if self.worker:
            self.worker.stop()
            self.worker.wait()
        else:
            time.sleep(self.control.now().stop_seconds)


def worker_died(worker: Child) -> None:
    """Log the death of a worker process in vLLM's words."""
    log.error(
        "multiproc_executor.py:315",
        f"Worker proc VllmWorker-{worker.name.removeprefix('Worker_TP')} died unexpectedly "
        f"(exit code: {worker.wait()}), shutting down executor.",
    )
