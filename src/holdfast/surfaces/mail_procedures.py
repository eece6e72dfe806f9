"""What to do about mail: a relay is lost, all of them are, or mail comes while the agent is recovered."""

from __future__ import annotations

from holdfast.surfaces.procedure import (
    OPERATOR,
    OWNER,
    TODO,
    WORKER,
    By,
    Parts,
    Procedure,
    Rank,
    by_hand,
    by_itself,
    typed,
)


def no_relays(parts: Parts) -> str:
    return "" if parts.relays else "the agent has no relays: `holdfast relay add ADDRESS`"


MAIL_PROCEDURES: tuple[Procedure, ...] = (
    Procedure(
        slug="relay-lost",
        failure="a relay of the agent is gone for good",
        seen="`holdfast surface list` and `relay doctor` name it; mail continues",
        rank=Rank.CONNECTIVITY,
        decides=OPERATOR,
        actions=(
            by_itself("mail continues over the other relays; each message is on two of them"),
            typed("see which relay is gone", "holdfast relay doctor --home {home}", "{relay}: does not answer"),
            typed("leave it", "holdfast relay remove {relay} --home {home}", "removed: ..."),
            by_hand("add another one, of another operator: `holdfast relay add ADDRESS`", by=By.OPERATOR),
            typed("see that all have the newest profile", "holdfast relay list --home {home}", "newest, in every row"),
        ),
        worked="a message of another agent arrives once, and `holdfast relay doctor` finds nothing",
        find_reason=no_relays,
    ),
    Procedure(
        slug="all-relays-lost",
        failure="all relays of the agent are gone for good",
        seen="no mail arrives, sent messages stay `waiting`, and no relay answers `relay doctor`",
        rank=Rank.CONNECTIVITY,
        decides=OWNER,
        actions=(
            by_itself("messages wait in the journals of their senders; the agent's own tasks continue"),
            by_hand("find three relays of two operators, or run them: `holdfast explain run-a-relay`", by=By.OPERATOR),
            by_hand("for each of them: `holdfast relay add ADDRESS`", by=By.OPERATOR),
            by_hand("give the new addresses to the agents that write to this one", by=By.OPERATOR),
            typed("see what did not arrive", "holdfast mail dead --home {home}", "every message has arrived, ..."),
        ),
        worked="every message without a delivery note is sent again by its sender and handled once",
        find_reason=no_relays,
    ),
    Procedure(
        slug="mail-during-recovery",
        failure="the agent is recovered from an older snapshot while mail comes in",
        seen="after a recovery, other agents have proof of messages that the agent does not know",
        rank=Rank.CONNECTIVITY,
        decides="no decision is needed",
        actions=(
            WORKER,
            by_itself("the relays deliver held mail again: what came after the snapshot"),
            typed("see what came", "holdfast mail inbox --home {home}", "every message once"),
            TODO,
        ),
        worked="no message is lost, and no effect of a handler is made twice",
        find_reason=no_relays,
    ),
)
