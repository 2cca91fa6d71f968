"""The exact papermill command: engine, client, and the checks before anything starts."""
