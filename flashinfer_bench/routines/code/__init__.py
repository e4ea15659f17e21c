"""Code that routines hand to the engine: `*_torch` are references, `*_flashinfer` call the library.

`routines.case.extract_source` reads these modules as text. Tests and ranks of mpirun import some of these modules. The
code has no annotations, like sources in data sets. A function takes only the inputs that it uses. The extracted `run`
takes all inputs.
"""
