mod budget;
mod fixtures;
mod requests;
mod rewriting;
mod robustness;
mod roles;
mod thinking;
