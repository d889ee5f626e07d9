"""What runs inside the sandbox. Nothing here imports anything but the standard library, and little
of that: each module is compiled outside, sent in, and adds to the start of every run.

    wire      how values travel, as data
    walls     limits, no capabilities, and the system calls there are
    probe     tries what must not be possible
    program   runs a program: on an input, or as a server of calls
    judge     runs the tests, and asks the program for its values
"""
