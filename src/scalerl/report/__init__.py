"""Results for people: figures, tables, the terminal, the HTML page."""
