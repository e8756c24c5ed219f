"""Answer requests at once, later, or in slices that let others have their turn.

Start with `request_table`, which finds the handler of a request code.
"""
