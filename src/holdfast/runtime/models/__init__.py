"""Chat models behind one port: what is asked, what came back, and over which endpoint."""
