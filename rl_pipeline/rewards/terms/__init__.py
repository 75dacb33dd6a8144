"""The built-in terms, one module each; their formulas for one trajectory are in `rewards/formulas.py`."""
