"""Mail between real agents over real relays, while relays are killed, cut off and made to lie; then count.

Everything is a process of its own: `holdfast relay serve`, `holdfast worker` for each agent, and one proxy in front of
all relays that delays, cuts, drops and repeats. Every process appends what it did to one file. The checker reads that
file and nothing else.

    events.py     the file: who writes what
    checker.py    lost, handled twice, reported as delivered and not committed, out of order; and the delays
    proxy.py      the proxy with faults
    app.py        what the agents run
    site.py       relays, proxy and agents, started and stopped
    planted.py    faults of our own, which the checker must find
    __main__.py   the soak: relays killed every ten seconds, one cut off, a steady load
    restores.py   an agent's machine is lost under traffic; all relays are lost
    liars.py      one relay of three lies
"""
