"""The direct link between boxes: findings, and what a measurement of it means. Pure."""
