"""The register of borders: each target, how it is seeded, and its share of the executions.

A border that is born gets a line here; the tests see to it that every target has seeds that are
accepted.

Not here: `load_app`, which imports whatever module its text names, by its purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast_proofs.fuzz import seeds
from holdfast_proofs.fuzz.borders import (
    contracts,
    home,
    identity,
    mail,
    model_replies,
    moves,
    paper,
    places,
    relays,
    schemas,
    signer,
    snapshots,
    spoken,
    stored,
    texts,
    updates,
)

BYTES_MAX = 4_096  # of one input; a page of a session has more


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = field(default=())  # of its language, put in by mutations
    share: float = 1.0  # of the executions; less where one execution takes long
    bytes_max: int = BYTES_MAX
    json: bool = False  # the input is JSON: hypothesis can make some


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(name="settings", run=texts.settings, seeds=seeds.SETTINGS, words=seeds.TOML_WORDS),
        Target(name="fleet", run=texts.fleet, seeds=seeds.FLEETS),
        Target(name="words", run=texts.words, seeds=seeds.WORDS, words=seeds.CLI_WORDS, share=0.2),
        Target(name="order", run=texts.order, seeds=seeds.ORDERS, words=seeds.JSON_WORDS, json=True),
        Target(name="keys", run=texts.keys, seeds=seeds.KEYS, words=seeds.JSON_WORDS, json=True),
        Target(name="names", run=texts.names, seeds=seeds.NAMES, bytes_max=300),
        Target(name="values", run=texts.json_values, seeds=seeds.JSON, words=seeds.JSON_WORDS, json=True),
        Target(name="evidence", run=texts.evidence, seeds=seeds.EVIDENCE, words=seeds.JSON_WORDS),
        Target(name="answer-body", run=texts.answer_body, seeds=seeds.JSON, words=seeds.JSON_WORDS, json=True),
        Target(name="records", run=stored.records, seeds=seeds.RECORDS, words=seeds.RECORD_WORDS),
        Target(name="views", run=stored.views, seeds=seeds.VIEWS, words=seeds.RECORD_WORDS),
        Target(name="rows", run=stored.rows, seeds=seeds.ROWS),
        Target(name="inbox", run=stored.inbox, seeds=seeds.INBOX, words=seeds.JSON_WORDS),
        Target(name="manifest", run=stored.manifest, seeds=seeds.MANIFESTS, words=seeds.PATH_WORDS),
        Target(name="sealed", run=stored.sealed, seeds=seeds.SEALED, bytes_max=300),
        Target(name="page", run=stored.page, seeds=seeds.PAGES, bytes_max=20_000, share=0.5),
        Target(name="instance", run=stored.instance, seeds=seeds.INSTANCE, words=seeds.JSON_WORDS, share=0.3),
        Target(name="answers", run=spoken.answers, seeds=seeds.ANSWERS, words=seeds.HTTP_WORDS),
        Target(name="requests", run=spoken.requests, seeds=seeds.REQUESTS, words=seeds.HTTP_WORDS),
        Target(name="frames", run=spoken.frames, seeds=seeds.FRAMES, words=seeds.FRAME_WORDS),
        Target(name="orders", run=spoken.orders, seeds=seeds.FAR_ORDERS, words=seeds.JSON_WORDS),
        Target(name="model-reply", run=model_replies.reply, seeds=model_replies.REPLIES, words=model_replies.WORDS),
        Target(name="model-stream", run=model_replies.stream, seeds=model_replies.STREAMS, words=model_replies.WORDS),
        Target(name="model-error", run=model_replies.error, seeds=model_replies.ERRORS, words=model_replies.WORDS),
        Target(
            name="model-request",
            run=model_replies.request,
            seeds=model_replies.REQUESTS,
            words=model_replies.WORDS,
            json=True,
        ),
        Target(name="arguments", run=schemas.arguments, seeds=schemas.ARGUMENTS, words=schemas.WORDS, json=True),
        Target(name="schemas", run=schemas.by_hand, seeds=schemas.BY_HAND, words=schemas.WORDS),
        Target(name="signer-request", run=signer.signer_request, seeds=signer.REQUESTS, words=signer.WORDS, json=True),
        Target(
            name="identity-line",
            run=identity.line,
            seeds=identity.LINES,
            words=identity.WORDS,
            bytes_max=9_000,
            json=True,
        ),
        Target(name="relay-address", run=relays.address, seeds=relays.ADDRESSES, words=relays.WORDS, bytes_max=300),
        Target(name="relay-answer", run=relays.answer, seeds=relays.ANSWERS, words=relays.WORDS),
        Target(
            name="relay-request",
            run=relays.request,
            seeds=relays.REQUESTS,
            words=(*relays.WORDS, *identity.WORDS, *mail.WORDS),
            bytes_max=9_000,
            share=0.2,
        ),
        Target(name="envelope", run=mail.envelope, seeds=mail.ENVELOPES, words=mail.WORDS, share=0.5),
        Target(name="letter", run=mail.letter, seeds=mail.LETTERS, words=mail.WORDS, share=0.3),
        Target(name="relay-content", run=mail.relay_content, seeds=mail.CONTENTS, words=mail.WORDS, share=0.3),
        Target(name="relay-proof", run=mail.proof, seeds=mail.PROOFS, words=mail.WORDS, share=0.3),
        Target(name="profile", run=mail.profile, seeds=mail.PROFILES, words=identity.WORDS, bytes_max=9_000, share=0.5),
        Target(name="peers", run=mail.peers, seeds=mail.PEERS, words=mail.WORDS, bytes_max=9_000, share=0.2),
        Target(name="relay-settings", run=mail.relay_settings, seeds=mail.SETTINGS, words=mail.WORDS, share=0.2),
        Target(name="update", run=updates.envelope, seeds=updates.ENVELOPES, words=updates.WORDS),
        Target(name="update-parcel", run=updates.parcel, seeds=updates.PARCELS, words=updates.WORDS, share=0.3),
        Target(name="shared-document", run=updates.document, seeds=updates.DOCUMENTS, words=updates.WORDS, share=0.3),
        Target(name="slots", run=paper.slots, seeds=paper.SLOTS, words=paper.WORDS, json=True, share=0.5),
        Target(
            name="identity-file",
            run=paper.identity_file,
            seeds=paper.IDENTITIES,
            words=paper.WORDS,
            json=True,
            share=0.2,
        ),
        Target(name="sheets", run=paper.sheets, seeds=paper.REGISTERS, words=paper.WORDS, json=True),
        Target(name="sheet", run=paper.sheet, seeds=paper.TEXTS, words=paper.WORDS, share=0.5),
        Target(name="card", run=paper.card, seeds=paper.CARDS, words=paper.WORDS),
        Target(name="key-file", run=paper.key_file, seeds=paper.KEY_FILES, words=paper.WORDS),
        Target(name="archive", run=snapshots.archive, seeds=snapshots.ARCHIVES, words=snapshots.WORDS, bytes_max=8_192),
        Target(name="snapshot-manifest", run=snapshots.manifest, seeds=snapshots.MANIFESTS, words=snapshots.WORDS),
        Target(
            name="head", run=snapshots.head, seeds=snapshots.HEADS, words=snapshots.WORDS, bytes_max=9_000, json=True
        ),
        Target(name="move-cover", run=moves.cover, seeds=moves.COVERS, words=moves.WORDS),
        Target(name="move-mark", run=moves.mark, seeds=moves.MARKS, words=moves.WORDS, json=True),
        Target(name="handoff", run=home.handoff, seeds=home.HANDOFFS, words=home.WORDS),
        Target(name="heartbeat", run=home.heartbeat, seeds=home.HEARTBEATS, words=home.WORDS),
        Target(name="day-file", run=home.day, seeds=home.DAYS, words=home.WORDS),
        Target(name="memory-merge", run=home.merging, seeds=home.MERGES, words=home.WORDS, bytes_max=2_048),
        Target(name="places", run=places.places, seeds=places.PLACES, words=places.WORDS, json=True),
        Target(name="beside", run=places.beside, seeds=places.TARS, words=places.WORDS, bytes_max=12_000),
        Target(name="borg-log", run=places.said, seeds=places.LOGS, words=places.WORDS, json=True),
        Target(
            name="payment-event", run=contracts.payment_event, seeds=contracts.PAYMENT_EVENTS, words=contracts.WORDS
        ),
        Target(
            name="mail-events", run=contracts.mail_events, seeds=contracts.MAIL_EVENTS, words=contracts.WORDS, json=True
        ),
        Target(name="provider-answer", run=contracts.provider_answer, seeds=contracts.ANSWERS, words=contracts.WORDS),
        Target(name="smtp-reply", run=contracts.smtp_reply, seeds=contracts.SMTP_REPLIES, words=contracts.WORDS),
    )
}
