"""Chat models behind one port: what is asked, what came back, over which endpoint. May import tool and below."""
