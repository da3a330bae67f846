mod failures;
mod goldens;
mod invalid;
mod invariance;
mod sampling;
mod support;
