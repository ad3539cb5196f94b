"""The pages of a company's website enter.

What they state of the company leaves: facts with their evidence, technologies, boards, a score.
How pages are fetched, and whether a board can be read, does not belong here.
"""
