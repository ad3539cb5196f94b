"""One page: by HTTP or browser, what kind of response it is, and what was there before."""
