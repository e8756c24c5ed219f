"""HTTP/1.1 on a socket: a connection, and the port that accepts them. A site says what is served."""
