"""`python -m eagle3_demo`: see eagle3_demo/cli."""

import sys

from eagle3_demo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
