//! Transformer models written once against the backend trait.
