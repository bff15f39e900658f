"""What was measured of a model on a kind of box, here or elsewhere: files, matched and told with their evidence."""
