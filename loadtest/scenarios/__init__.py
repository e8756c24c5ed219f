"""Scenarios: locustfiles to run, read and change. The first lines say what each does, and how to run it.

Those with the names of the field's suites (`conn-tcp-...`, `fanout-...`, `p2p-...`, `sharedsub-...`) have
several sizes; the environment variable SIZE chooses one. Payloads have 24 bytes, where these suites have
16: the stamp by which latency and loss are measured needs as many.
"""
