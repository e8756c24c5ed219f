"""Delete old segments.

Start with `decide`, which says how far; `apply` does it to all that is derived from them, and `delete_thread`
deletes the files.
"""
