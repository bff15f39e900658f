#!/bin/bash
# A chat model of several files, as somebody starts it by hand.
export CUDA_VISIBLE_DEVICES=0
MODELS=/srv/models
LLAMA_API_KEY=sk-0123456789abcdefghij nohup /opt/llama.cpp/build/bin/llama-server \
  -m $MODELS/qwen3-32b-q8_0-00001-of-00002.gguf -a qwen,office --host 0.0.0.0 \
  -c 131072 -np 4 -ngl 99 -fa on -ctk q8_0 -ctv q8_0 --jinja --metrics \
  --api-key sk-0123456789abcdefghij > /var/log/llama.log 2>&1 &
