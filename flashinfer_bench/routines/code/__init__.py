"""Code that routines hand to the engine: `*_torch` are references, `*_flashinfer` call the library.

`routines.case.extract_source` reads these modules as text. Ranks of mpirun and tests import some of them. They have no
annotations, like sources in data sets. A function names the inputs that it uses; its source gets all inputs.
"""
