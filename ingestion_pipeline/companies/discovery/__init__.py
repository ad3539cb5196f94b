"""A board that a company's pages lead to enters.

A source leaves, if the board can be read: polled at once where pattern and probe agree, else
waiting for an operator. What the board lists does not belong here.
"""
