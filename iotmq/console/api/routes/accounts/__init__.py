"""Callers of the API: signing in, users, API keys, and the record of their actions. Start with `sign_in`."""
