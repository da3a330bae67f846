//! Token sampling with a counter-based generator.
