"""Tools: their contract, schema and validation, and the threads and processes that blocking ones
run in.
"""
