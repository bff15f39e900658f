"""The gateway of a pool: an OpenAI-compatible API in front of the shared queue. None of them holds state."""
