"""Downloaded pages become records: claimed, read by the ladder, written with what proves them.

Pages of the content store enter, and rows of a dataset leave; a page that says what it said before
is carried over. No request is made here.
"""
