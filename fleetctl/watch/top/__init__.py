"""The live screen: what every copy does at this moment, and did in the last minutes."""
