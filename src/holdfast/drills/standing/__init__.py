"""A restored copy that stays beside production: making it, and the job that brings it forward."""
