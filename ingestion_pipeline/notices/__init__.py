"""Who is told, once: the outbox becomes notices, notices become messages, messages are delivered.

Outbox rows enter, written with the records they speak of; signed webhooks and mails leave. A notice
is written once for ever per recipient and subject, its delivery is at least once under one key.
What is worth telling is decided by the systems, and how a page is fetched does not belong here.
"""
