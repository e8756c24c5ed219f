# Used by compiled modules only.
