"""Answers for operators: look at topics, groups and messages, and change them.

Start with `configuration`; each other file is one kind of question.
"""
