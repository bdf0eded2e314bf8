"""A Celery application on Curbstone.

celery -A tasks worker          and:    python -c 'import tasks; tasks.remind.apply_async(("Ada",), countdown=60)'
"""

import os

from celery import Celery

import curbstone_client.celery  # noqa: F401  # registers the scheme curbstone://

url = os.environ.get("CURBSTONE_URL", "http://localhost:8080")
app = Celery("tasks", broker=f"{url.replace('http', 'curbstone', 1)}/shop", backend="rpc://")
app.conf.task_acks_late = True  # if a worker dies, another worker repeats its task


@app.task(autoretry_for=(OSError,), retry_backoff=True)
def remind(name: str) -> str:
    return f"Dear {name}, your order waits."
