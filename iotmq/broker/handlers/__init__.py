"""Answer requests, sorted by who asks: `native` clients, `mqtt` front ends, operators (`admin`).

A handler reads the request, lets the other rooms do the work, and encodes the answer.
"""
