"""The kernels on the CPU, compiled by numba; no other room of this package imports numba."""
