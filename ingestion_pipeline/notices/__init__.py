"""Notifications: outbox rows become notices, notices become messages, messages are delivered.

The systems write outbox rows in the transaction of the records they refer to; this package sends
signed webhooks and mails. There is one notice per recipient and subject, ever; its delivery is at
least once, under one idempotency key. Which events are worth a notification is decided by the
systems.
What is worth a notification does not belong here.
"""
