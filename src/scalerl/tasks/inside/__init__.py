"""The code that runs inside the sandbox. It imports only the standard library, and little of that:
each module is compiled outside and sent in, and its imports delay the start of every program.

    wire           encoding of values
    restrictions   limits, no capabilities, and the filter of system calls
    selftest       tries what must not be possible
    program        runs a program: on an input, or as a server of calls
    tester         runs the unit tests, and asks the program for its values
"""
