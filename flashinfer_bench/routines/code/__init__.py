"""Code that routines hand to the engine: `*_torch` are references, `*_flashinfer` call the library.

`routines.case.extract_source` reads these modules as text; ranks of mpirun and tests import some. They are written as data sets
have their sources: without annotations. A function names the inputs that it uses; its source gets all of them.
"""
