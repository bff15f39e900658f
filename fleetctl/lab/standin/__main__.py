"""`python3 -m standin serve MODEL …`: the same as `bin/vllm serve MODEL …`."""

import sys

from .cli import main

sys.exit(main(sys.argv[1:]))
