"""The CommitLog and its projections; knows no sockets and no event loop."""
