"""Topic names and filters: what is valid, what matches, what is special about some of them.

Start with `topics`; `filters` is the table of filters that a server matches with.
"""
