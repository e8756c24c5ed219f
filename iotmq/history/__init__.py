"""Numbers over time: the history of a process's metrics in memory, and statistics that outlive processes.

`sampler` has the history, over `rings`; `tables` has the statistics, over `statistics_file`. `questions` has
what is asked about both, and what is answered.
"""
