"""``python -m fleetctl.pool.encoder --model FOLDER --served-model-name NAME … (--uds PATH | --host H --port P)``.

Answers once the model is loaded; ends on SIGTERM or SIGINT with status 0, after what is at work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time

from fleetctl.errors import FleetError
from fleetctl.pool.encoder.arguments import Arguments, read_arguments

GRACE = 30.0
"""Seconds that requests at work have, once the server is told to end."""
BATCH_START = {"CPUExecutionProvider": 8}
"""What the start of a batch costs, in tokens that could be computed in that time (bench/pool_encoder.py)."""
OTHER_START = 512
"""The same for a GPU, which is short of rows rather than of time."""
log = logging.getLogger("encoder")


def main() -> int:
    """The program."""
    arguments = read_arguments()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    os.environ.setdefault("RAYON_NUM_THREADS", str(arguments.threads))  # of the tokenizer
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy pools inside the lanes
    try:
        import uvloop

        uvloop.run(serve(arguments))
    except FleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        told = "install them with: pip install 'fleetctl[encoder]'"
        print(f"error: the encoder's libraries are not installed ({error.name}); {told}", file=sys.stderr)
        return 1
    except OSError as error:
        place = arguments.uds or f"{arguments.host}:{arguments.port}"
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        print(f"error: cannot listen on {place}: {why}", file=sys.stderr)
        return 1
    return 0


async def serve(arguments: Arguments) -> None:
    """Load, listen, and end when told to. Raises ModelError and OSError."""
    from fleetctl.pool.encoder.api import Api
    from fleetctl.pool.encoder.batching import Batcher
    from fleetctl.pool.encoder.engine import CPU, Engine
    from fleetctl.pool.encoder.metrics import Figures
    from fleetctl.pool.encoder.recipe import read_recipe
    from fleetctl.pool.encoder.tokens import Tokens
    from fleetctl.pool.http import Server

    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    begin = time.monotonic()
    recipe = read_recipe(arguments.model, arguments.most_tokens)
    tokens = Tokens(recipe.folder, recipe.lower_case)
    # On a CPU a core computes a batch of its own: cores that share one wait for each other.
    lanes, threads = (arguments.threads, 1) if arguments.provider == CPU else (1, arguments.threads)
    engine = Engine(recipe, threads, arguments.provider)
    figures = Figures()
    start = BATCH_START.get(arguments.provider, OTHER_START)
    batcher = Batcher(engine.embed, lanes, arguments.most_batch_tokens, start, figures)
    api = Api(arguments.names, recipe, engine.size, tokens, batcher, figures)
    server = Server(api.handle)
    if arguments.uds is not None:
        await server.listen_unix(arguments.uds)
        place = f"unix:{arguments.uds}"
    else:
        place = f"http://{arguments.host}:{await server.listen(arguments.host, arguments.port)}"
    length = ", of length 1" if recipe.normalise else ""
    log.info(
        "%s on %s: %d numbers%s by %s, %d tokens at most; %s with %d threads; loaded in %.1f s",
        ", ".join(arguments.names), place, engine.size, length, recipe.pooling, recipe.most_tokens,
        arguments.provider, arguments.threads, time.monotonic() - begin,
    )  # fmt: skip
    await ended.wait()
    cut = await server.stop(GRACE)
    await batcher.close()
    if arguments.uds is not None:
        arguments.uds.unlink(missing_ok=True)
    log.info("ended%s", f"; {cut} requests were cut off" if cut else "")


if __name__ == "__main__":
    sys.exit(main())
