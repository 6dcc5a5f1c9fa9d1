"""A live job for other processes.

In the process of the job:

- ``process``: the entry point of a job in the background;
- ``server``, ``api``: its HTTP server, with token and limits, and what it answers;
- ``metrics``: what Prometheus reads.

In commands and notebooks:

- ``files``: which jobs there are, and what is left of those that have ended;
- ``background``: starts a job, or resumes one;
- ``client``: asks a job;
- ``forgetting``: deletes what is left of a job;
- ``watched``, ``explorer``: a job as notebooks see it, and buttons for it.
"""
