"""The state explorer: every interleaving of a small world, over production's own decisions.

`core.step.next_step` and `core.resume.decide` are imported and decide everything about a step;
the model supplies the rest of the world: processes that die, pause and come back, a network that
delays and loses, a far end that keeps its contract, people, and a journal that is lost.
"""
