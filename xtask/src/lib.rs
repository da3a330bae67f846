//! Checks that clippy cannot make.
