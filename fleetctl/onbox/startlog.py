"""What a running engine logged of its memory when it started, however long ago that is."""

import re
import subprocess
from typing import Any, Dict, List

from fleetctl.onbox.main import Call, environment, op
from fleetctl.onbox.units import MEMORY_WORDS, states

MORE_WORDS = re.compile(
    "peak memory|peak activation|non_torch|CUDA graph|Graph captur|kv_cache_memory_bytes|max_num_batched_tokens"
)
FIRST = 20_000  # lines of the log that a start may take
MOST = 80  # lines that are told
LONGEST = 600  # characters of a line that are told


@op("start_lines")
def start_lines(call: Call, unit: str) -> Dict[str, Any]:
    """``lines`` of the log of the process that a unit runs now, from its beginning; ``active`` is systemd's word."""
    state = states(call, [unit])[unit]
    told: List[str] = []
    if not state["invocation"]:
        return {"active": state["active"], "lines": told}
    argv = ["journalctl", "_SYSTEMD_INVOCATION_ID=" + state["invocation"], "-o", "cat", "--no-pager", "--quiet"]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    assert process.stdout is not None
    try:
        for number, raw in enumerate(process.stdout):
            call.check()
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if MEMORY_WORDS.search(line) or MORE_WORDS.search(line):
                told.append(line[:LONGEST])
            if number >= FIRST or len(told) >= MOST:
                break
    finally:
        process.kill()
        process.communicate()
    return {"active": state["active"], "lines": told}
