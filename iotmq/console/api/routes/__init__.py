"""The routes by area; `table.py` has them all."""
