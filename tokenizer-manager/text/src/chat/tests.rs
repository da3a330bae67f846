mod fixtures;
mod requests;
mod rewriting;
