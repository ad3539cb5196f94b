"""The run tags that limits and ops read; `dagster.yaml` names the same ones."""

TIER = "ingestion/tier"
SHARD = "ingestion/shard"  # tier:number, so that a cold run never keeps a hot one waiting
SHARDS = "ingestion/shards"  # how many there are, if not as many as the settings say
PRIORITY = "dagster/priority"
CRAWL = "ingestion/crawl"  # a job that walks on wherever pages wait
