//! The pure scheduling library: (state, events) to plan.
//!
//! [`Planner`] holds every request, every KV page and the radix prefix cache,
//! and turns them into one [`StepPlan`](lockstep_types::step::StepPlan) after
//! another. It reads no clock (time enters as [`Millis`]), does no I/O, starts
//! no thread and draws no random number: the same calls give the same plans.
//!
//! Each part of the state has one owner. Admission knows the queue, its time limits and the
//! next request. Steps knows the steps in flight and the depth of their drafts. For each DP
//! rank there are the batch (running requests) and the KV (pages and prefix cache). [`Planner`]
//! joins them.
//!
//! A caller's loop feeds events ([`Planner::submit`], [`Planner::abort`], [`Planner::tick`],
//! [`Planner::complete`]), sends plans from [`Planner::plan`] until there is none, and delivers
//! [`Planner::take_outputs`].
//!
//! Beside the real parts stand their oracles, a naive cache and a simulated
//! worker with a run-alone reference.

#![forbid(unsafe_code)]

pub mod config;
pub mod error;
pub mod load;
pub mod planner;
pub mod sim;

mod adapters;
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
/// The most that a decode step may write, the KV that drafting keeps per cached token, and the
/// order of admission.
pub use lockstep_types::{DraftKv, ReserveConfig, SchedulePolicy};
pub use planner::{LiveRequest, Planner};
pub use steps::PlanDepth;
