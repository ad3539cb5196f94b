"""What was fetched: the content store on disk, and snapshots in the database."""
