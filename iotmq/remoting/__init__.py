"""The native wire protocol: frames, commands, codes, server and client connections."""
