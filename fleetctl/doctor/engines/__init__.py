"""What engines say of themselves in their logs and counters, and what it means. Pure."""
