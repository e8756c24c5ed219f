"""What operators ask of brokers and registries, a file for each subject.

Start with `admin`, which has them all.
"""
