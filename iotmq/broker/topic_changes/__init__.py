"""Changes of topics that take several steps, and how far consumers are behind (`group_progress`).

Start with `topic_removal`.
"""
