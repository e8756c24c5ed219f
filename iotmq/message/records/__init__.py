"""Encode, decode and walk records of the log; read `layout.pxd` first, then `record.pxd`."""
