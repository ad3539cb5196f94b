"""Boards enter, as they are polled: what their answers list.

Listings leave as rows, each posting once however many boards list it, with a task to judge each
that is new or different. What a listing is worth does not belong here.
"""
