"""The record: layout, batch encoding, properties, tag hash, ids and columnar decode."""
