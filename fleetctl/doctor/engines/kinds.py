"""The kinds of findings about engines."""

from __future__ import annotations

from fleetctl.doctor.finding import Kind, Severity

_CASES = "vLLM's log, 0.6 to 0.32"

ALONE = Kind(
    "E01",
    Severity.ERROR,
    "the head of a split waits for its followers",
    "a head whose log stays at `Init torch distributed begin`, or at waiting for another rank, for more than a minute",
    "The process is up and nothing is served: whoever looks at the head alone takes it for loading.",
    "Start the rank that is missing, or what it runs into: its own log says so.",
    _CASES,
)
DIED = Kind(
    "E02",
    Severity.ERROR,
    "a worker of the engine died",
    "`RayWorkerProc rank=[2] died unexpectedly`, `Worker proc … died unexpectedly` since the engine last started well",
    "The engine cannot go on without it; its other processes may be left holding memory.",
    "Look at the lines before it (memory is the usual reason), then restart the engine.",
    _CASES,
)
LOST_HEAD = Kind(
    "E03",
    Severity.ERROR,
    "a follower has lost its head",
    "`Failed to recv, got 0 bytes. Connection was likely closed.` again and again on a rank of a split that is up",
    "The follower loops on it, holds its memory, and never joins the head again by itself.",
    "Restart the whole engine: all ranks begin together.",
    _CASES,
)
DEAD_LINK = Kind(
    "E04",
    Severity.ERROR,
    "the engine waits for a process that does not answer",
    "`No available shared memory broadcast block found in 60 seconds.` again and again with nothing else in "
    "between: three times while it serves, twenty times while it loads (from three on a note; once is slow "
    "compilation, and nothing)",
    "One process, or the other box, does not come back: a dead link, or ranks with different flags.",
    "Look at the link (`fleetctl link test`), then restart the whole engine.",
    "vLLM: shm_broadcast.py",
)
SKEW = Kind(
    "E05",
    Severity.ERROR,
    "the ranks of a split are not the same",
    "`Version mismatch: The cluster was started with`, and ranks that were given other settings or another build",
    "They cannot be one engine: they hang or end.",
    "Install the same build on every box, and put the same layout on all (`fleetctl apply`).",
    "Ray: version check of a cluster; fleetctl's rank.py",
)
PORT = Kind(
    "E06",
    Severity.ERROR,
    "a port that the engine needs is taken",
    "`EADDRINUSE` in the log of an engine that does not run, of a port of which nothing else shows who has it",
    "The engine ends at every start.",
    "Stop what has the port, or give the engine another one.",
    "PyTorch: torch.distributed TCPStore",
)
SLOW_START = Kind(
    "E07",
    Severity.ERROR,
    "the engine gives up before it has loaded",
    "`Timed out waiting for engines to send initial message on input socket.`, and the same in the words of later "
    "versions",
    "vLLM's API server waits 600 s for the engine's core; a large model on a slow disk takes longer.",
    "Raise VLLM_ENGINE_READY_TIMEOUT_S, and `load_limit:` with it.",
    "vLLM: v1/engine/core_client.py",
)
DEAD = Kind(
    "E08",
    Severity.ERROR,
    "the engine is dead although it answers",
    "requests that wait while none runs, and no token counter that moves between two looks (without counters: "
    "throughput lines that say so three times in a row)",
    "GETs and even the head of an answer come with 200, and then nothing: clients wait until they give up.",
    "Restart the engine. A guard does it by itself.",
    "vLLM: vllm:num_requests_running, _waiting, *_tokens_total",
)
TOOLS = Kind(
    "E09",
    Severity.WARNING,
    "tool calls do not work",
    "calls that arrive as text (`<tool_call>` in the content, `Error in extracting tool call`), and requests that "
    "are refused "
    'with `"auto" tool choice requires`. An idle engine that has a parser is asked one short question with a tool; '
    "one that has none, and answered requests with 400, is asked whether that is why",
    "Agents get status 400, or an answer with 200 that has the call as text and `tool_calls` empty.",
    "Name the parser that fits the model: --enable-auto-tool-choice --tool-call-parser NAME.",
    "vLLM documentation: tool calling",
)
DRAFTS = Kind(
    "E10",
    Severity.WARNING,
    "speculative decoding never hits",
    "drafted tokens that grow while none is accepted (below one in ten it is a note)",
    "Drafts that are thrown away cost 29 to 41 % of the throughput.",
    "Take speculative: out, or correct its method or draft model.",
    "vLLM: SpecDecoding metrics, vllm:spec_decode_num_*",
)
LORA = Kind(
    "E11",
    Severity.WARNING,
    "a LoRA adapter cannot be loaded",
    "`LoRA rank N is greater than max_lora_rank`, `No adapter found for`, and a load endpoint that answers 404",
    "Requests for the adapter fail; one named at the start keeps the engine from starting.",
    "Raise --max-lora-rank; put the adapter on every box; allow loading at run time.",
    "vLLM documentation: LoRA adapters",
)
WEIGHTS = Kind(
    "E12",
    Severity.ERROR,
    "the engine does not get its weights",
    "`OfflineModeIsEnabled` and `Cannot access gated repo` in the log of an engine that does not run",
    "The unit has an environment of its own: what works in your shell (a token, a cache) need not be there.",
    "Give the unit HF_TOKEN by reference, or HF_HOME of the cache that has the files.",
    "huggingface_hub: offline mode, gated repositories",
)
ABORTED = Kind(
    "E13",
    Severity.NOTE,
    "requests were cut off when the engine stopped",
    "`aborting in-flight requests` within a day, by an engine without --shutdown-timeout",
    "vLLM aborts what runs at SIGTERM unless it is given time. The proxy drains first; what takes longer, or came "
    "round the proxy, is cut.",
    "Give it time with --shutdown-timeout (newer versions have it), or raise `drain:` of the proxy.",
    "vLLM: --shutdown-timeout, v1/engine/core.py",
)
FILES = Kind(
    "E14",
    Severity.WARNING,
    "the engine may open too few files",
    "`Found ulimit of N and failed to automatically increase`, and `Too many open files`",
    "Every connection is a file: under load new ones fail.",
    "fleetctl's units allow 1,048,576; what lowers it is a drop-in, or an option of the container.",
    "vLLM: system_utils.py, set_ulimit",
)
QUEUE = Kind(
    "E15",
    Severity.NOTE,
    "requests wait in the engine although it is at its limit",
    "throughput lines of a minute and more that all say: as many running as --max-num-seqs allows, and more waiting",
    "The proxy gives an engine no more than its concurrency: these came round it, or --max-num-seqs is lower. What "
    "waits in one engine cannot go to the other.",
    "Point all clients at the proxy; let `concurrency:` and --max-num-seqs be the same.",
    "vLLM: throughput line of loggers.py",
)

KINDS = (
    ALONE,
    DIED,
    LOST_HEAD,
    DEAD_LINK,
    SKEW,
    PORT,
    SLOW_START,
    DEAD,
    TOOLS,
    DRAFTS,
    LORA,
    WEIGHTS,
    ABORTED,
    FILES,
    QUEUE,
)
