#!/bin/sh
# Two GPUs of one model, in a container.
set -e
MODEL=qwen3-32b
docker pull vllm/vllm-openai:v0.11.0
docker run -d --name vllm --gpus all --ipc=host --restart unless-stopped \
    -p 127.0.0.1:8080:8000 -v /data/models:/models:ro \
    -e HUGGING_FACE_HUB_TOKEN=$HF_TOKEN -e VLLM_USE_V1=1 --env-file ./vllm.env \
    --ulimit memlock=-1 \
    vllm/vllm-openai:v0.11.0 \
    --model /models/$MODEL --served-model-name $MODEL \
    --max-model-len 64K --pipeline-parallel-size 2 --kv-cache-memory-bytes 8G \
    --lora-modules a=/loras/a --hf-token hf_abcdefghijklmnopqrstuvwxyz > log.txt 2>&1 &
curl -s http://localhost:8080/v1/models
