"""Fuzzing of every border: bytes in; a value, or an error of ours, out.

A border is where something comes in that we did not make: files, words of the command line, rows
of a journal, answers of a far end, frames of a child, what people and webhooks say. Behind each
stands one target here, a function of bytes. It may raise what the border documents (a
HoldfastError, almost everywhere); anything else that comes out, an execution longer than a
second, and a value that does not survive its own round trip are findings.

The same targets are run by three engines: atheris, which follows the code's branches (`make
fuzz`); our own mutations, where atheris has no wheel; and hypothesis, shortly, in `make test`.
"""
