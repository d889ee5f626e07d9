"""The live page: runs, forecasts and verdicts in a browser while they go.

    find        what lies under the directories: runs of ours, logs of others, studies
    sources     files that are read on from where one was, and the runs in them
    reading     a look at a source by another thread, and the watchdog over it
    workers     threads for calls that may never return
    catalogue   all of it, watched by one thread; who changed is told to the events
    questions   what is asked of a run (window, axis, budget, target …), and the answer
    inside      the panels of a run that somebody has opened
    studies     table, knob map and race of a study
    exports     figures, data and the offline report
    guard       who may ask: host, origin, token; and the headers of every answer
    connections deadlines for requests that are half sent and answers that are not read
    replies     bodies of requests, and answers as they are sent
    app         the addresses
    server      the port

No request writes anything, and nothing outside of the directories is read. Fits are those of the
commands, in threads, kept by their content.
"""
