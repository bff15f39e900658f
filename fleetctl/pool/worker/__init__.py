"""The worker of a box: takes requests from the queue as its engines have room, and loads and evicts the models."""
