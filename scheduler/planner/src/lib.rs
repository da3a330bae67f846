//! The pure scheduling library: (state, events) to plan.
//!
//! [`Planner`] holds every request, every KV page and the radix prefix cache,
//! and turns them into one [`StepPlan`](lockstep_types::step::StepPlan) after
//! another. It reads no clock (time enters as [`Millis`]), does no I/O, starts
//! no thread and draws no random number: the same calls give the same plans.
//!
//! A caller's loop is: feed events ([`Planner::submit`], [`Planner::abort`],
//! [`Planner::tick`], [`Planner::complete`]), send what [`Planner::plan`]
//! gives until it gives nothing, and deliver [`Planner::take_outputs`].
//!
//! Beside the real parts stand their oracles, a naive cache and a simulated
//! worker with a run-alone reference.

#![forbid(unsafe_code)]

pub mod config;
pub mod error;
pub mod load;
pub mod naive_cache;
pub mod pages;
pub mod planner;
pub mod radix;
pub mod sim;

mod admission;
mod complete;
mod deadlines;
mod decode;
mod estimate;
mod finish;
mod flight;
mod integrity;
mod kv;
mod prefill;
mod prefix;
mod queue;
mod retract;
mod retry_after;
mod slots;
mod speculation;
mod step;
mod submit;
mod table;

pub use config::{Millis, PlannerConfig, RequestId, SchedulePolicy};
pub use error::{Busy, IntegrityError, PlannerError};
pub use load::{Counters, Load};
/// What a decode step may write, and what drafting keeps per cached token.
pub use lockstep_types::{DraftKv, ReserveConfig};
pub use planner::Planner;
pub use radix::{CacheEvent, StoredBlock};
pub use speculation::SpeculationCounters;
