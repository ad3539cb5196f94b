"""Configure the Celery workers; dagster-celery imports this module by name from PYTHONPATH.

Broker and result backend come from CELERY_BROKER_URL and CELERY_RESULT_BACKEND, as in dagster.yaml.
"""

import os

broker_url = os.environ["CELERY_BROKER_URL"]
result_backend = os.environ["CELERY_RESULT_BACKEND"]

# A busy worker prefetches nothing: a reserved run would wait minutes for the current one
# to end while other workers are idle, and would be lost with this worker.
worker_prefetch_multiplier = 1
worker_disable_prefetch = True

# A run is never delivered twice: `stale_runs` detects a lost one by its heartbeat, and another run
# claims its tasks. Redis redelivers what was taken but not started after this time.
task_acks_late = False
broker_transport_options = {"visibility_timeout": 3600}

# Dagster's monitor queries the state of a run's Celery task while the run lasts.
result_expires = 86_400

broker_connection_retry_on_startup = True
worker_send_task_events = False
# Restart the process now and then, so that memory leaks of libraries do not add up.
worker_max_tasks_per_child = 200
