podman run -d --name tei --network host --device nvidia.com/gpu=all --log-driver journald \
  -v /srv/tei:/data -e HF_TOKEN ghcr.io/huggingface/text-embeddings-inference:89-1.9 \
  --model-id /data/gte-large --served-model-name gte --hostname 0.0.0.0 -p 8090 \
  --max-batch-tokens 32768 --auto-truncate --hf-token hf_abcdefghijklmnopqrstuvwxyz
docker run --rm --gpus all -p 9997:7997 michaelf34/infinity@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef \
  v2 --model-id org/bge-small --model-id org/second --url-prefix "" --device cuda
docker run ghcr.io/ggml-org/llama.cpp:server -hf org/tiny-GGUF:Q8_0 -np 2 -c 9000
