CUDA_VISIBLE_DEVICES=0 nohup /home/ops/venvs/vllm/bin/python3 -m vllm.entrypoints.openai.api_server \
  --model ~/models/tiny --port 9000 --no-enable-prefix-caching --data-parallel-size 2 --seed -1
