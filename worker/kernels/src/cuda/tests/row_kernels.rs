//! The kernels that process rows of floats, compared with float64.
