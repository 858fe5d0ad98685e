"""Kernels for a CPU in a C++ library of their own, and a whole model step over them in bfloat16."""
