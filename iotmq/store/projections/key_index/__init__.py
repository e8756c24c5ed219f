"""From a topic and a key to the records that have it.

Start with `key_index`; `index_file` has the layout.
"""
