"""Commands as bytes: the general decoder, and compiled readers of the frequent ones.

Start with `frame`, which knows all of it.
"""
