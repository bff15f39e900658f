"""The engine as the API server sees it: a queue, running requests, and tokens at the rate of a curve."""

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from . import text
from .adapters import Adapters
from .arguments import ServeArgs
from .errors import ApiError, engine_dead
from .metrics import Metrics
from .settings import Control, Curve, Settings

MIN_TICK = 0.005
MAX_TICK = 0.1
UNSPECULATIVE = 0.65  # speculation that never hits leaves 59 to 71 % of the throughput (case C28)
USUAL_ACCEPTANCE = 0.7
PREFIX_BLOCKS = 200_000


def throughput(curve: Curve, running: int) -> float:
    """Total tokens per second with `running` requests: linear between the points, flat after the last."""
    previous = (0.0, 0.0)
    for point in curve:
        if running <= point[0]:
            share = (running - previous[0]) / (point[0] - previous[0])
            return previous[1] + share * (point[1] - previous[1])
        previous = point
    return previous[1]


@dataclass(eq=False)
class Generation:
    """One request in the engine. Events on `events`: a number of new tokens, a finish reason, or an error."""

    prompt_tokens: int
    max_tokens: int
    natural: int
    cached_tokens: int = 0
    made: int = 0
    credit: float = 0.0
    prefill_left: float = 0.0
    prefill_whole: float = 0.0
    arrived: float = field(default_factory=time.monotonic)
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    events: "asyncio.Queue[int | str | ApiError]" = field(default_factory=asyncio.Queue)

    @property
    def limit(self) -> int:
        """Tokens after which it ends."""
        return min(self.max_tokens, self.natural)

    @property
    def read_tokens(self) -> int:
        """Prompt tokens that are in the cache: all of them once the prompt is read."""
        if self.prefill_left <= 0:
            return self.prompt_tokens
        done = 1 - self.prefill_left / self.prefill_whole
        return self.cached_tokens + int((self.prompt_tokens - self.cached_tokens) * done)


class Engine:
    """Admits up to `max_num_seqs` requests while the cache has room; hands out tokens; keeps the metrics."""

    def __init__(self, args: ServeArgs, control: Control, cache_tokens: int) -> None:
        self.args = args
        self.control = control
        self.cache_tokens = cache_tokens
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.dead = False
        self.adapters = Adapters(args.served_model_name, args.enable_lora, args.max_lora_rank)
        self.wake = asyncio.Event()
        self.reported = (0, 0, 0.0)  # running, waiting, share of the cache: as the last step of the core told them
        self.prefixes: OrderedDict[bytes, None] = OrderedDict()
        self.metrics = Metrics(
            args.served_model_name[0],
            args.speculative_tokens > 0,
            {
                "block_size": args.block_size,
                "gpu_memory_utilization": args.gpu_memory_utilization,
                "cache_dtype": args.kv_cache_dtype,
                "enable_prefix_caching": args.prefix_caching,
                "kv_cache_memory_bytes": args.kv_cache_memory_bytes,
                "num_gpu_blocks": cache_tokens // args.block_size,
                "kv_cache_size_tokens": cache_tokens,
            },
        )

    def submit(self, prompt: str, prompt_tokens: int, max_tokens: int, natural: int) -> Generation:
        """Queue a request. Raises ApiError when the engine is dead."""
        if self.dead:
            raise engine_dead()
        generation = Generation(prompt_tokens, max_tokens, natural)
        generation.cached_tokens = self.cached(prompt, prompt_tokens) if self.args.prefix_caching else 0
        self.waiting.append(generation)
        self.wake.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a request whose client is gone; one that has finished is left alone."""
        if generation in self.running or generation in self.waiting:
            self.finish(generation, "abort")

    def abort_all(self) -> None:
        """End every request with the finish reason "abort", as a stop without --shutdown-timeout does."""
        for generation in [*self.running, *self.waiting]:
            self.finish(generation, "abort")

    def die(self) -> None:
        """Fail every request and refuse new ones: the engine core is gone."""
        self.dead = True
        for generation in [*self.running, *self.waiting]:
            generation.events.put_nowait(engine_dead())
        self.running.clear()
        self.waiting.clear()

    def busy(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self.running or self.waiting)

    def cache_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return min(1.0, sum(g.read_tokens + g.made for g in self.running) / self.cache_tokens)

    def cached(self, prompt: str, prompt_tokens: int) -> int:
        """Prompt tokens found in the prefix cache; the prompt's whole blocks are in it afterwards."""
        size = self.args.block_size
        data = prompt.encode()
        step = size * text.BYTES_PER_TOKEN
        digest, hits, missed = hashlib.blake2b(digest_size=16), 0, False
        for at in range(0, len(data) - step + 1, step):
            digest.update(data[at : at + step])
            key = digest.digest()
            missed = missed or key not in self.prefixes
            hits += 0 if missed else size
            self.prefixes[key] = None
            self.prefixes.move_to_end(key)
        while len(self.prefixes) > min(PREFIX_BLOCKS, self.cache_tokens // size):
            self.prefixes.popitem(last=False)
        return min(hits, prompt_tokens - 1)

    async def run(self) -> None:
        """Hand out tokens until cancelled."""
        before = time.monotonic()
        while True:
            settings = self.control.now()
            now = time.monotonic()
            if not settings.hang:
                self.advance(now - before, settings)
                self.admit(settings)
                self.reported = (len(self.running), len(self.waiting), self.cache_usage())
            before = now
            self.wake.clear()
            idle = settings.hang or not self.running
            pause = self.tick(settings) if not idle else MAX_TICK if self.waiting else None
            try:
                await asyncio.wait_for(self.wake.wait(), pause)
            except TimeoutError:
                continue
            if idle:
                before = time.monotonic()

    def admit(self, settings: Settings) -> None:
        """Move waiting requests to running while slots and cache allow."""
        while self.waiting and len(self.running) < self.args.max_num_seqs and not settings.starved:
            used = sum(g.prompt_tokens + g.made for g in self.running)
            generation = self.waiting[0]
            if self.running and used + generation.prompt_tokens > self.cache_tokens:
                return
            self.waiting.popleft()
            computed = generation.prompt_tokens - generation.cached_tokens
            generation.started = time.monotonic()
            generation.prefill_left = computed * settings.prefill_seconds_per_token / settings.speed
            generation.prefill_whole = generation.prefill_left
            self.running.append(generation)
            self.metrics.observe("request_queue_time_seconds", generation.started - generation.arrived)
            if self.args.prefix_caching:
                self.metrics.add("prefix_cache_queries", generation.prompt_tokens)
                self.metrics.add("prefix_cache_hits", generation.cached_tokens)
                self.metrics.add("prompt_tokens_cached", generation.cached_tokens)

    def rate(self, settings: Settings) -> float:
        """Total tokens per second now."""
        count = len(self.running)
        mean = sum(g.prompt_tokens for g in self.running) / count
        curve = settings.long_curve if mean >= settings.long_prompt_tokens else settings.curve
        rate = throughput(curve, count) * settings.speed
        if settings.batched_curve:
            rate *= throughput(settings.batched_curve, self.args.batched_tokens)
        if self.args.speculative_tokens:
            hit = min(1.0, settings.spec_acceptance / USUAL_ACCEPTANCE)
            rate *= UNSPECULATIVE + (1 - UNSPECULATIVE) * hit
        return rate

    def tick(self, settings: Settings) -> float:
        """Seconds until the next token or the end of the next prompt."""
        step = len(self.running) / max(self.rate(settings), 1e-6)
        prefill = next((g.prefill_left for g in self.running if g.prefill_left > 0), step)
        return min(MAX_TICK, max(MIN_TICK, min(step, prefill)))

    def advance(self, elapsed: float, settings: Settings) -> None:
        """Spend `elapsed` seconds: read prompts one after the other, and decode for those already read."""
        if not self.running:
            return
        share = self.rate(settings) / len(self.running)
        left = elapsed
        for generation in list(self.running):
            decoding = elapsed
            if generation.prefill_left > 0:
                spent = min(left, generation.prefill_left)
                generation.prefill_left -= spent
                left -= spent
                if generation.prefill_left > 0:
                    continue
                self.metrics.add("prompt_tokens", generation.prompt_tokens)
                generation.credit += 1.0  # reading the prompt gives the first token
                decoding = left
            generation.credit += decoding * share
            if generation.credit >= 1.0:
                self.emit(generation, settings)

    def emit(self, generation: Generation, settings: Settings) -> None:
        """Turn credit into tokens; finish the request at its limit."""
        now = time.monotonic()
        count = min(int(generation.credit), generation.limit - generation.made)
        generation.credit -= count
        if not generation.made:
            generation.first_token = generation.last_token = now
            self.metrics.observe("time_to_first_token_seconds", now - generation.arrived)
        elif count:
            self.metrics.observe("inter_token_latency_seconds", (now - generation.last_token) / count, count)
        generation.last_token = now
        generation.made += count
        self.metrics.add("generation_tokens", count)
        self.count_drafts(count, settings)
        if count:
            generation.events.put_nowait(count)
        if generation.made >= generation.limit:
            self.finish(generation, "stop" if generation.natural <= generation.max_tokens else "length")

    def count_drafts(self, tokens: int, settings: Settings) -> None:
        """Count what speculative decoding drafted and had accepted for `tokens` tokens."""
        depth = self.args.speculative_tokens
        if depth and tokens:
            drafts = tokens / (1 + depth * settings.spec_acceptance)
            self.metrics.add("spec_decode_num_drafts", drafts)
            self.metrics.add("spec_decode_num_draft_tokens", drafts * depth)
            self.metrics.add("spec_decode_num_accepted_tokens", tokens - drafts)

    def finish(self, generation: Generation, reason: str) -> None:
        """Take a request out and count it."""
        now = time.monotonic()
        (self.running if generation in self.running else self.waiting).remove(generation)
        self.metrics.success[reason] += 1
        observe = self.metrics.observe
        observe("e2e_request_latency_seconds", now - generation.arrived)
        observe("request_prompt_tokens", generation.prompt_tokens)
        observe("request_generation_tokens", generation.made)
        if generation.made:
            decode = generation.last_token - generation.first_token
            observe("request_prefill_time_seconds", generation.first_token - generation.started)
            observe("request_decode_time_seconds", decode)
            observe("request_inference_time_seconds", generation.last_token - generation.started)
            observe("request_time_per_output_token_seconds", decode / max(1, generation.made - 1))
        generation.events.put_nowait(reason)
        self.wake.set()
