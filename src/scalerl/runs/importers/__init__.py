"""One module for each format: from its bytes to a table, or one line that says why not."""
