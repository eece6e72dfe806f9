"""What `holdfast doctor` finds about the agent's relays."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.app.doctor import Finding, damage, ok, warning
from holdfast.errors import HoldfastError
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.agent_home import AgentHome
from holdfast.relay.client.status import find_stale_profile, look_at_relays, one_operator


async def examine_relays(home: AgentHome) -> AsyncIterator[Finding]:
    """Findings about the agent's relays; none where it has no relay."""
    try:
        found = await look_at_relays(home, port=Sodium())
        stale = find_stale_profile(home, port=Sodium())
    except HoldfastError as error:
        yield damage("relay", error.message, error.hint)
        return
    for one in found:
        url = one.address.url
        again = f"`holdfast relay add {one.address}` publishes it again; a worker does so by itself"
        if one.error:
            yield warning("relay", one.error, f"start it; if it is gone for good: `holdfast relay remove {url}`")
            continue
        if one.evidence:
            text = f"{url} holds two profiles or backup heads of one version: this agent runs twice, or keys are stolen"
            yield damage("relay", text, "stop the other copy; if there is none: `holdfast identity evict`")
        if not one.log:
            yield warning("relay", f"{url} does not hold the newest record of the key log", again)
        elif one.listed and not one.newest:
            yield warning("relay", f"{url} does not hold the newest profile of this agent", again)
        elif not one.evidence:
            yield ok("relay", f"{url} answers; " + ("it holds the newest profile" if one.newest else "no profile yet"))
    if stale:
        fix = "a worker renews it; without one: `holdfast relay add ADDRESS` with the address of any of its relays"
        yield warning("relay", stale, fix)
    operator = one_operator(found)
    if operator:
        yield warning(
            "relay",
            f"all {len(found)} relays are run by {operator}: they may fail together",
            "add a relay of another operator: `holdfast relay add ADDRESS`",
        )
