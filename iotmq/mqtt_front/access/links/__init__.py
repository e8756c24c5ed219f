"""The links of the authentication chain, each of which decides about devices by one means.

Start with `link`, which says what a link is.
"""
