"""The register of surfaces, the level that follows from dated facts, targets, and the alarms of both.

May import every room below `drills`. Each room brings its own rows and facts (`surfaces.py` in that room).
"""
