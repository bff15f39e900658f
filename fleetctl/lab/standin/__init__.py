"""A stand-in for vLLM 0.32: same command line, processes, logs, API and metrics; no model, no GPU.

Standard library only, Python 3.11: the folder is bind-mounted read-only at /opt/standin in a lab box
and started as `/opt/standin/bin/vllm serve MODEL …`. Answers are seeded words: the same prompt and
model name always give the same text.

SETTINGS. Each has a default, may be set in the environment as STANDIN_<NAME IN CAPITALS>, and may be
set in a JSON control file, which wins and is read again whenever it changes, so faults can be switched
on while the engine runs. The file is the one named by STANDIN_CONTROL, else /etc/standin.json where
that exists. `{"ranks": {"1": {"load_seconds": 9}}}` in the file gives one rank its own values.

| setting                  | default        | meaning                                                   |
| ------------------------ | -------------- | --------------------------------------------------------- |
| load_seconds             | 5              | time from start to ready                                  |
| slow_start               | 0              | seconds added to load_seconds                             |
| stop_seconds             | 0              | time the engine core keeps its memory after SIGTERM       |
| memory_bytes             | 64 MiB         | allocated and touched bit by bit while loading            |
| weights_bytes            | 71 GiB         | size of the weights in log lines                          |
| cache_bytes              | 13 GiB         | memory for the cache in log lines, without                |
|                          |                | --kv-cache-memory-bytes                                   |
| cache_tokens             | 760000         | KV cache room per node; times nnodes                      |
| max_model_len            | 262144         | context length where --max-model-len is not given         |
| curve                    | see settings   | [[running requests, total tokens/s], …], short prompts    |
| long_curve               | see settings   | the same for long prompts                                 |
| long_prompt_tokens       | 2000           | mean prompt length from which long_curve counts           |
| batched_curve            | none           | [[--max-num-batched-tokens, factor on both curves], …]    |
| prefill_seconds_per_token| 9.6 / 16900    | time to read one prompt token                             |
| speed                    | 1              | factor on both curves and on reading prompts              |
| answer_tokens            | 64             | middle of the answer length where nothing stops it sooner |
| spec_acceptance          | 0.7            | share of draft tokens accepted (speculative decoding)     |
| rendezvous_timeout       | 600            | seconds the ranks of a split wait for each other          |
| engine_ready_timeout     | 600            | seconds until the API server gives up on its engine core  |
| on_mismatch              | "hang"         | ranks with different flags: "hang", or "fail" at once     |
| on_head_lost             | "loop"         | a follower without its head: "loop" for ever, or "exit"   |
| orphans                  | false          | engine core outlives a killed API server, with its memory |

FAULTS, off by default:

| fault                    | effect                                                                    |
| ------------------------ | ------------------------------------------------------------------------- |
| health_lies              | /health answers 200, every completion 500; the engine stays up            |
| hang                     | the engine core stops: /health and /metrics answer, the second with the   |
|                          | numbers of the core's last step; completions wait for ever                |
| starved                  | the engine core starts no request: they wait for ever, and /metrics and   |
|                          | the log say so, with none running                                         |
| die_at_first_request     | the next completion answers 500, then the engine exits with status 1      |
| die_at_request: N        | the same at the Nth completion since the start                            |
| exit_during_load: X      | engine core fails X seconds into loading; traceback, status 1             |
| never_ready              | loads for ever; gives up after engine_ready_timeout                       |
| error_500                | everything except /health answers 500                                     |
| dead_engine              | /health answers 503 (or the number given, such as 500), completions 500   |
| zero_exit                | status 0 where a fault above would give 1                                 |
| tool_calls_as_text       | tool calls arrive as text in `content` (tool parser that does not fit)    |
| lora_fails               | POST /v1/load_lora_adapter answers 500                                    |

NOT THERE, and refused when asked for: --config, --grpc, TLS, data parallelism, several API servers.
Other options of vLLM 0.32 that have no meaning without a model are checked and then ignored.

HOW IT STARTS AND STOPS, each as vLLM 0.32 does it:

- The API port is bound at once but listens only when the engine is ready: until then connections are
  refused, while a port that is already taken is reported at once.
- The process `vllm` has a child `VLLM::EngineCore` that loads and holds the memory; with more than one
  rank the memory is in a grandchild `VLLM::Worker_TP<rank>`. If one of them dies, running requests get
  500 and the API server exits with status 0.
- SIGTERM aborts running requests (their finish_reason is "abort") or, with --shutdown-timeout N, lets
  them finish for up to N seconds; then status 0. SIGTERM while loading ends it by SIGINT.
- `--nnodes 2 --node-rank 0|1`: rank 0 waits at --master-addr:--master-port. Follower lost: /health stays
  200 until the next request, which gets 500, then the head exits with status 0. Head lost: the follower
  logs that its connection was closed, again and again, and never rejoins.
"""

VERSION = "0.32.0+standin"
