"""Mutants: small wrong changes to the code, each of which some test must notice.

A mutation tester of our own, because what is mutated here is small, decides over values, and has
tests that run in a second: a mutant is one change in the syntax tree, put in the place of its
module in a forked process before anything imports it. Nothing is written to a file.

A mutant that no test kills is either a gap in the tests, or changes nothing that can be seen. The
second kind is listed, with a reason each, in `explained.toml` beside this file.
"""
