"""What is going on: every engine read directly, summed, shown."""
