"""What was measured of a model on a kind of box, elsewhere or here: kept as files, matched, and told with its evidence."""
