"""The work loops: claim tasks, fetch host by host, write results in fenced transactions.

What a system does with a page or a feed belongs to the system; a single request belongs to `pages`.
"""
