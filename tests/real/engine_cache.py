"""Start real vLLM on the CPU with made-up weights, a case a line in, its log out between marks. Run by its own Python.

The engine runs in this process, one after the other: each takes a few seconds where ``vllm serve`` takes half a minute.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

BEGIN, END = "=== begin", "=== end"


def start(case: dict[str, object], folder: Path) -> None:
    """Start an engine, so that it logs the size of its cache, and end it."""
    from vllm import LLM

    (folder / "config.json").write_text(json.dumps(case["config"]))
    engine = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_num_seqs=4,
        **case["arguments"],  # type: ignore[arg-type]
    )
    engine.llm_engine.engine_core.shutdown()


def main() -> None:
    from vllm import logger
    from vllm.distributed import cleanup_dist_env_and_memory

    for line in sys.stdin:
        case = json.loads(line)
        print(BEGIN, case["name"], flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                start(case, Path(folder))
            except Exception as error:  # what the engine refuses is for the test to see
                print(f"{type(error).__name__}: {error}"[:1000], flush=True)
        # Two engines with a cache of the same size would log it once.
        logger._print_info_once.cache_clear()
        gc.collect()
        cleanup_dist_env_and_memory()
        print(END, case["name"], flush=True)


if __name__ == "__main__":
    main()
