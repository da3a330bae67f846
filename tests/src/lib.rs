//! Cross-process, golden, conformance and fault tests.
