mod failures;
mod goldens;
mod invalid;
mod invariance;
mod limits;
mod random;
mod sampling;
mod support;
