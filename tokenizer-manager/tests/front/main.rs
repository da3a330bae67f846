//! The tokenizer-manager over its real sockets, with a scripted scheduler
//! behind it and the demo model's tokenizer inside.

mod access;
mod adapters;
mod adaptive;
mod answers;
mod browsers;
mod budgets;
mod channels;
mod chat;
mod client;
mod completions;
mod console;
mod corpora;
mod dp_ranks;
mod forgiving;
mod grpc;
mod harness;
mod health;
mod held_calls;
mod lifecycle;
mod messages;
mod messages_errors;
mod mock;
mod native;
mod openapi;
mod operators;
mod refusals;
mod responses;
mod responses_errors;
mod room;
mod salts;
mod speculative;
mod spellings;
mod steps;
mod weights;
