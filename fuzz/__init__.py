"""Fuzzing of all parsers with invalid input.

    targets    one module per parser, with the properties that must hold
    cutting    cuts bytes into different pieces
    corpus     stored inputs, one text file per target
    engine     atheris in its own process: new inputs, guided by coverage
    replay     runs the stored inputs, without atheris

A target fails by raising: for an exception that is not in the error tree, or for a property that
does not hold (the pieces of the input make no difference, a parsed value that is rendered and
parsed again is the same, no intact data is lost).

`python -m fuzz --help` lists the options.
"""
