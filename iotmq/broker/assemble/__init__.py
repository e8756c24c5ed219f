"""The request processors of a broker, put together: for native clients, for operators, for front ends.

Start with `native`. `broker.broker` starts and stops what is put together here.
"""
