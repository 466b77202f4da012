"""Runs random scenarios until one fails: exit status 1 and the reason when a bug is caught, 0 when all pass.

python -m tests.engine.hunt 2000 [kv_allocation]
"""

import sys
from typing import Any

from tests.engine.fake import Scenario


def main() -> int:
    kv_allocation: Any = sys.argv[2] if len(sys.argv) > 2 else "paged"
    for seed in range(int(sys.argv[1])):
        try:
            Scenario(seed, with_aborts=seed % 2 == 0, kv_allocation=kv_allocation).run()
        except Exception as error:
            print(f"caught with seed {seed}: {type(error).__name__}: {str(error)[:100]}")
            return 1
    print("survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
