"""One worker's session: its lease, its deadlines, and the writer of a task's records. May import models and below."""
