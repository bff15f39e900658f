"""What others wrote to run engines, read into entries for fleet.yaml. Pure: nothing is looked up but the text given."""
