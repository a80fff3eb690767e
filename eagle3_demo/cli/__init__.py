"""The command line: `python -m eagle3_demo COMMAND`. One file for each group of commands."""
