"""Crawling: fetch the pages of a source one by one, and write what follows from them."""
