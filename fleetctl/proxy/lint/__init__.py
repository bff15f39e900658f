"""Reads a proxy's configuration and says what each setting would do in an outage or to a long stream."""
