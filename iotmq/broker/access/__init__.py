"""Accounts of the native protocol and what each of them may do.

Start with `acl`, which decides; `accounts_file` reads the accounts.
"""
