"""Code that routines hand to the engine: `*_torch` are references, `*_flashinfer` call the library.

`routines.case.lift` reads these modules as text; nothing imports them but tests.
"""
