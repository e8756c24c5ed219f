"""Answers for operators: look at topics, groups and messages, and change them.

Start with `configuration`; each other file is one kind of question: `topic_status` has the offsets of topics,
`consume_stats` those of groups.
"""
