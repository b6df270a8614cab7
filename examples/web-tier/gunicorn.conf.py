"""gunicorn for one application server: two processes of two threads, connections kept alive.

The application is imported once, in the master, so that start-up is paid once per node.
"""
import os

wsgi_app = "app:application"
chdir = os.path.dirname(os.path.abspath(__file__))
bind = os.environ.get("BIND", "0.0.0.0:8080")
workers = 2
worker_class = "gthread"
threads = 2
preload_app = True
keepalive = 75
# Heartbeat files belong in memory: a slow disk must not look like a hung worker.
worker_tmp_dir = "/dev/shm"
timeout = 60
graceful_timeout = 5
