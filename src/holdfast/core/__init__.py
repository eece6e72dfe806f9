"""Values, pure decisions and ports. Imports only `errors`."""
