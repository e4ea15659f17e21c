"""Calls that the library may tune first. Several families share this module."""

import flashinfer

AUTOTUNE = False
TUNED = []


def call(function, *arguments, **options):
    """Call a function. With AUTOTUNE the library tunes in the first call."""
    if AUTOTUNE and not TUNED:
        with flashinfer.autotune(True):
            function(*arguments, **options)
        TUNED.append(True)
    return function(*arguments, **options)
