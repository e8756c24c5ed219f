"""The same client for programs without asyncio, made from the asynchronous classes.

Start with `facade`. After a change of a public class: `python tools/blocking_stub.py` writes `classes.pyi`.
"""
