"""What a snapshot looks like inside an archive: its manifest, the strict reader, and a writer that
stays inside one folder. Imports no other folder of backup.
"""
