"""Crash suites: real programs, a real journal, real sockets, killed and stopped at any call."""
