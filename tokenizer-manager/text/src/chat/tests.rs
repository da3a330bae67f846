mod budget;
mod fixtures;
mod goldens;
mod python;
mod requests;
mod rewriting;
mod robustness;
