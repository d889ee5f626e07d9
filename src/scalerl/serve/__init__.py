"""The live page: `scalerl serve` shows runs, forecasts and verdicts in a browser while runs go on.

    discovery    finds runs, logs of other frameworks and studies under the served directories
    sources      reads the files of one run or log, from where the last reading stopped
    watchdog     waits a bounded time for a read that may hang
    threads      daemon threads for calls that may never return
    catalogue    all runs, refreshed by one thread; changes are published as events
    queries      a request for a fit, forecast or comparison, and its result
    run_details  the panels of a run that a visitor has opened
    studies      table, knob map and race of a study
    exports      figures, data and the offline report
    guard        access: host, origin, token; security headers
    connections  deadlines for requests that arrive slowly and responses that are not read
    responses    bodies of requests and of responses
    app          the routes
    server       the port

Requests change nothing on disk, and files outside of the served directories are never read. Fits
are those of the commands, computed in threads and cached by content.
"""
