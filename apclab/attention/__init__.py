"""The door to the kernels: checks arguments, imports the backend that was named, binds a launch.

It holds no kernel and no clock. A backend that cannot run here is an error that says why.
"""

from apclab.attention.compiled import compile_kernels
