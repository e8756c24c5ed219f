"""Accounts of the native protocol and what each of them may do.

Start with `acl`, which checks each request; `rules` says which permission a request needs, and
`accounts_file` reads what each account has.
"""
