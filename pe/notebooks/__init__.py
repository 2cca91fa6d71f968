"""What stands between papermill and this repository's notebooks."""
