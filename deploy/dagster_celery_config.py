"""What Celery workers are told; found by dagster-celery under this name on PYTHONPATH.

Broker and result backend come from CELERY_BROKER_URL and CELERY_RESULT_BACKEND, as in dagster.yaml.
"""

import os

broker_url = os.environ["CELERY_BROKER_URL"]
result_backend = os.environ["CELERY_RESULT_BACKEND"]

# A worker that works takes nothing: a run that it had in reserve would wait for the end of the one
# it is at, minutes later, while others are idle, and would be lost with it.
worker_prefetch_multiplier = 1
worker_disable_prefetch = True

# A run is never delivered twice: who lost one is told by its heartbeat (`stale_runs`), and the work
# it held is claimed by another run. Redis gives back what was taken and not begun after this.
task_acks_late = False
broker_transport_options = {"visibility_timeout": 3600}

# Dagster's monitor asks for the state of a run's task as long as the run lasts.
result_expires = 86_400

broker_connection_retry_on_startup = True
worker_send_task_events = False
# A fresh process now and then, so that what a library forgets to free does not add up.
worker_max_tasks_per_child = 200
