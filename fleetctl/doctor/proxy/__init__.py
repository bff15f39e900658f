"""The proxy: what lengthens an outage, what differs from fleet.yaml, and where requests really go."""
