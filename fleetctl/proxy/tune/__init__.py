"""Settings of the fleet's proxy from what the fleet measures (pure)."""
