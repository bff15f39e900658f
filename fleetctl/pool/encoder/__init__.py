"""A server of embedding models for boxes without a GPU (and any execution provider of ONNX Runtime).

It reads a folder as sentence-transformers writes it: the weights stay in their ``model.safetensors``, and the graph is
written from ``config.json`` when the server starts, so that nothing has to be exported. Its libraries are those of the
optional extra ``encoder`` and are imported where they are used: nothing else of fleetctl needs them.
"""
