mod failures;
mod goldens;
mod invalid;
mod invariance;
mod random;
mod sampling;
mod support;
