"""Values, pure decisions and the ports that keep the rooms apart."""
