"""Many small models behind one shared queue: the programs that run on the boxes of a pool, and what they agree on."""
