"""Power cuts, failed syncs and full disks, around the tasks of the crash suites."""
