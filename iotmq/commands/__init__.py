"""The `iotmq` command: a file or a folder for each group of subcommands.

Start with `cli`, which reads the words and hands over to the others.
"""
