"""The kernels in Triton; the package `triton` itself is meant wherever its name stands alone."""
