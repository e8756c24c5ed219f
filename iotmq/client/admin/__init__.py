"""Ask brokers and registries for operators, a file for each subject.

Start with `admin`, which has them all.
"""
