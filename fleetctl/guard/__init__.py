"""The optional service on a box: sheds load before memory runs out, and restarts an engine that hangs."""
