"""The live page: `scalerl serve` shows runs, forecasts and verdicts in a browser while runs go on.

    server ─► guard ─► app ─► queries, run_details, studies, exports
                        └─► catalogue ─► watchdog ─► discovery, sources

Requests change nothing on disk but the page's own file of pins, tags, notes and views
(`annotations`), and files outside of the served directories are never read. Fits
are those of the commands, computed in threads and cached by content.
"""
