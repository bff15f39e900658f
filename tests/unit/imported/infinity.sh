DO_NOT_TRACK=1 INFINITY_PORT=7999 /opt/infinity/bin/infinity_emb v2 --model-id org/bge-m3 --url-prefix /v1 \
  --revision 5617a9f --dtype float16 --api-key $INFINITY_API_KEY
text-embeddings-router --model-id org/gte-reranker-base --port 3001 --prometheus-port 9001
llama-server -m models/tiny.gguf --reranking
