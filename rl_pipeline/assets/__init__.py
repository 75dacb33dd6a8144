"""One file per asset of the lineage, with its checks."""
