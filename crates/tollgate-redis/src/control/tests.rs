//! Black-box tests of what instances tell each other.
