"""Penstock's fuzzing: bytes that nobody would send, at everything that reads bytes.

    targets    one module for each thing that reads bytes, with the properties that must hold
    cutting    the same bytes in other pieces
    corpus     the inputs worth keeping, a file of text for each target
    engine     atheris, in a process of its own: new inputs, led by coverage
    replay     the kept inputs once more, which needs no atheris

A target fails by raising: for an exception that is not in the error tree, and for a property that
does not hold (the same bytes cut otherwise read the same, what was read and is written again reads
the same, nothing intact is lost).

`python -m fuzz --help` lists the options.
"""
