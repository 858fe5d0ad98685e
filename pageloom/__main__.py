"""`python -m pageloom` is the `pageloom` command."""

from pageloom.cli import main

main()
