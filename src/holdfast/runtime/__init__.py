"""The runtime: runs tasks so that each effect takes place once. Imports journal, layout, host, core and errors; inside,
each folder imports only those after it: engine, agent, task, step, gate, scratch, session, models, tool, secrets, http.
"""
