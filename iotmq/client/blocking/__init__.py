"""The same client for programs without asyncio.

Start with `client`.
"""
