"""The sentences of the recovery document, and its plain text form."""

from __future__ import annotations

from holdfast.identity.paper.paper import Card, Sheet, grouped

POWER = (
    "Anyone who holds this sheet can lock out every running copy of the agent, take it over and "
    "open its backups. You do not need it in daily work. It signs nothing else."
)
SHARE_POWER = (
    "Any {needed} of these {total} shares together can lock out every running copy of the agent, take "
    "it over and open its backups. One share alone reveals nothing. Never keep two in one place."
)
STEPS = (
    "Install Holdfast. Without it: Python and age, see the public card.",
    "Run: holdfast recover (more: holdfast recover --help)",
    "Scan the code, or type the words. The first four letters of each are enough.",
    "Check that name and id on the screen match this sheet.",
    "Follow the instructions on the screen.",
)
WARNING = (
    "Never type these words into a website or a chat. If anyone else has seen this sheet, run: holdfast paper replace"
)
DERIVATION = (
    "Words: BIP-39, English list. Shares: SLIP-39; combined they give the 32 bytes of the words.",
    "Seed: BIP-39, PBKDF2-HMAC-SHA-512, 2048 rounds, salt 'mnemonic' + passphrase (NFKD).",
    "Keys: SLIP-0010, hardened steps only:",
    "  ed25519     m/7233'/0'/g'  recovery key of generation g: evicts, retires",
    "  ed25519     m/7233'/1'/g'  next key: takes over after recovery g",
    "  curve25519  m/7233'/2'/0'  escrow key: an age identity",
    "Escrow key as text: Bech32, prefix AGE-SECRET-KEY-, capitals.",
    "Open the keys without Holdfast: age -d -i KEYFILE escrow.age (beside every backup).",
    "Log: JSON lines; records signed with Ed25519 over 'holdfast/1/kel', NUL, RFC 8785 JSON.",
    "The code: HF1C:, then base32 of the zlib-compressed log lines.",
)


def heading(sheet: Sheet) -> str:
    return f"Recovery sheet for agent {sheet.name}"


def facts(sheet: Sheet) -> str:
    parts = [f"sheet {sheet.number}", sheet.date, f"generation {sheet.generation}", sheet.part]
    if sheet.share is not None:
        parts.append(f"document {sheet.share.document}")
    if sheet.holder:
        parts.append(f"for {sheet.holder}")
    return " - ".join(parts)


def power(sheet: Sheet) -> str:
    if sheet.share is None:
        return POWER
    return SHARE_POWER.format(needed=sheet.share.needed, total=sheet.total)


def checks(sheet: Sheet) -> list[str]:
    kept = "yes, kept at ______________" if sheet.has_passphrase else "none"
    return [
        f"Check: {grouped(sheet.check)}",
        f"Id: {sheet.agent_id[:6]} ... {sheet.agent_id[-6:]}",
        f"Passphrase: {kept}",
    ]


def rows(words: tuple[str, ...], columns: int = 3) -> list[list[tuple[int, str]]]:
    """Numbered words, in columns that are read downwards."""
    height = -(-len(words) // columns)
    return [[(at + 1, words[at]) for at in range(row, len(words), height)] for row in range(height)]


def sheet_text(sheet: Sheet) -> str:
    """The same as the printed page, for a machine without PDF."""
    lines = [f"SECRET - {heading(sheet)}", facts(sheet), "", power(sheet), ""]
    for row in rows(sheet.words):
        lines.append("".join(f"{number:2}. {word:<14}" for number, word in row).rstrip())
    lines += ["", *checks(sheet), "", sheet.code, ""]
    lines += [f"{number}. {step}" for number, step in enumerate(STEPS, 1)]
    lines += ["", WARNING, "", "Tested:  date        who             how (scan, typed)   result"]
    lines += ["         __________  ______________  __________________  __________"] * 4
    return "\n".join(lines) + "\n"


def listed(card: Card) -> list[tuple[str, str]]:
    return [
        ("Handles", ", ".join(card.handles) or "none"),
        ("Relays", ", ".join(card.relays) or "none"),
        ("Backups", ", ".join(card.backups) or "none listed: ask the owner of this agent"),
        ("Contact", card.contact or "none"),
    ]


def card_text(card: Card) -> str:
    lines = [f"PUBLIC CARD of agent {card.name}", card_facts(card), "", "Id:", grouped(card.agent_id)]
    lines += ["", *(f"{name}: {value}" for name, value in listed(card)), "", card.code, ""]
    lines += ["Without Holdfast:", *DERIVATION]
    return "\n".join(lines) + "\n"


def card_facts(card: Card) -> str:
    return f"{card.date}, generation {card.generation}. Print a new card after each recovery."
