"""Changes of topics that take several steps, and how far consumers are behind.

Start with `topic_removal`.
"""
