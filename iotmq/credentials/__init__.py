"""Proofs of who somebody is, for all ports: hashes of passwords, keys of tokens, failures and turns."""
