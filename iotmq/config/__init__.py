"""The settings of a process: read from file, environment and command line, checked, printed.

Start with `config`; `setting_text` reads and writes single values, and writes the reference. Each
role has its own settings in its package; here they come together.
"""
