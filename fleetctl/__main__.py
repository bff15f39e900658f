"""``python -m fleetctl``: the command, where its script is not on the path."""

from fleetctl.cli.main import main

if __name__ == "__main__":
    main()
