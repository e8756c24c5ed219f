"""The routes by area, a room for each part of the house; `table.py` has them all."""
