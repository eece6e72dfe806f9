"""The agent and an editor write one memory file at the same time: is a line ever lost?

The editor is a process of its own and saves the way editors do: by a new file under the old name,
by writing in place, by cutting the file first, by appending. It loads the file, takes its time, and
saves what it has, so that it often saves a text from before our last write. At the end every line
of either side must be there once.
"""
