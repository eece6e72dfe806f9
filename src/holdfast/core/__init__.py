"""Values, pure decisions and the ports between rooms. Imports only `errors`."""
