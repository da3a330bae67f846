//! The pure scheduling library: (state, events) to plan.
//!
//! [`Planner`] holds every request, every KV page and the radix prefix cache,
//! and turns them into one [`StepPlan`](lockstep_types::step::StepPlan) after
//! another. It reads no clock (time enters as [`Millis`]), does no I/O, starts
//! no thread and draws no random number: the same calls give the same plans.
//!
//! Inside there are owners, each with its fields to itself: admission (who waits,
//! how long, who is next), steps (what is in flight, and how deep it drafts), and
//! for each DP rank its batch (who runs) and its KV (pages and prefix cache).
//! [`Planner`] joins them.
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
pub mod planner;
pub mod sim;

mod admission;
mod batch;
mod dp_rank;
mod kv;
mod request;
mod steps;

pub use config::{Millis, PlannerConfig, RequestId};
pub use error::{Busy, IntegrityError, PlannerError};
pub use kv::radix::{CacheEvent, StoredBlock};
pub use load::{Counters, DpRankCounters, DpRankLoad, Load, SpeculationCounters, Times};
/// What a decode step may write, what drafting keeps per cached token, and who
/// is admitted next.
pub use lockstep_types::{DraftKv, ReserveConfig, SchedulePolicy};
pub use planner::{LiveRequest, Planner};
pub use steps::PlanDepth;
