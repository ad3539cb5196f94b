"""A site and the programs that crawl it, each a process of its own: ours, and its peers."""
