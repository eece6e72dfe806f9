"""An older copy of the journal comes back after effects were made, and the code plans otherwise.

    python -m holdfast_proofs.rewind --cases 200

Each case is a task or an agent in a process of its own, against far ends that count. Somewhere in
its life the journal is copied by SQLite's backup API; the task goes on, makes effects, and is
killed or ends. Then the machine is lost: the copy becomes the journal by `holdfast recover`, and
the task is resumed by code that asks for other arguments, another order, one call more. The far
ends' own books are the judge: nothing keyed or queryable is done twice, what the lost timeline did
is adopted and told, and what nobody can ask about is parked and not sent again.
"""
