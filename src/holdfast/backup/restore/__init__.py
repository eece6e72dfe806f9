"""From snapshots back to an agent's folder, or to single files of it. Imports snapshot and all below it."""
