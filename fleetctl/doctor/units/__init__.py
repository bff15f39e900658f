"""Family *units*: what starts, stops and keeps the units of fleetctl, and what of it is not right."""
