"""A headless rank of a split: `vllm serve … --node-rank 1 --headless`, with its `VLLM::Worker_TP<rank>`."""

import signal
import time

from . import VERSION, log
from .arguments import ServeArgs
from .core import STORE_FRAME, GoneError, LoadFailedError, check_parent, load, worker_died
from .process import Link, fork, set_name
from .rendezvous import RendezvousError, join
from .settings import Control

HEAD_LOST = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"


def run_follower(args: ServeArgs, control: Control) -> int:
    """Run the rank until SIGTERM (status 0) or until it cannot start (status 1)."""
    set_name("vllm")
    stopping = False

    def on_signal(*_: object) -> None:
        nonlocal stopping
        stopping = True
        worker.stop()

    log.info(
        "serve.py:224",
        f"Launching vLLM (v{VERSION}) headless multiproc executor, with head node address "
        f"{args.master_addr}:{args.master_port} for torch.distributed process group.",
    )
    worker = fork(f"Worker_TP{args.node_rank}", lambda link: run_worker(args, control, link))
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    started = False
    while not worker.link.closed:
        for message in worker.link.receive(None):
            started = started or message.get("event") == "loaded"
    status = worker.wait()
    if stopping:
        return 0
    if started:
        # vLLM's headless rank only watches its worker; once that has died it simply returns.
        worker_died(worker)
        return 0
    log.traceback(
        ["vllm/v1/executor/multiproc_executor.py 818 wait_for_ready"],
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        f"See stack trace for root cause. (exit code: {status})",
    )
    return 1


def run_worker(args: ServeArgs, control: Control, link: Link) -> int:
    """The worker process: join the head, load, then follow it until told to stop."""

    def check() -> None:
        check_parent(link, control.now())

    try:
        log.info("parallel_state.py:1823", "Init torch distributed begin.")
        head = join(args, control.now(), check)
        while not any(message.get("do") == "load" for message in head.receive(0.05)):
            check()
            if head.closed:
                mourn(link, control)
                return 1
        log.info("parallel_state.py:1823", "Init torch distributed ends.")
        memory = load(link, control)
        head.send(event="loaded")
        link.send(event="loaded")
        while memory:
            check()
            head.receive(0.1)
            if head.closed:
                mourn(link, control)
                return 1
    except GoneError:
        time.sleep(control.now().stop_seconds)
        return 0
    except RendezvousError as error:
        log.traceback([STORE_FRAME], str(error), "multiproc_executor.py:1010")
    except LoadFailedError:
        pass
    return 1


def mourn(link: Link, control: Control) -> None:
    """What a rank does without its head: say so for ever and never rejoin (case C09), or return."""
    pause = 0.2
    while control.now().on_head_lost == "loop":
        log.plain(f"[W TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl: {HEAD_LOST}")
        for _ in range(10):
            check_parent(link, control.now(), pause / 10)
        pause = min(pause * 2, 5.0)
