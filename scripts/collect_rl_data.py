"""By MassGen's own name: `python scripts/collect_rl_data.py` collects sample traces in `./rl_data/traces/`."""

import sys

from rl_pipeline.collection.massgen.collect_rl_data import main

if __name__ == "__main__":
    sys.exit(main())
