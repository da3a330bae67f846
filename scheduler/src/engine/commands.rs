//! Commands of clients and operators.

use super::Engine;
use crate::{error::RunError, inbox::Command, sinks::request_id};

impl Engine {
    /// Handles one command; an error ends the engine.
    pub(super) fn handle_command(&mut self, command: Command) -> Result<(), RunError> {
        match command {
            Command::Open { sink, reply } => {
                let id = self.sinks.open(sink, &self.config_hash);
                if reply.send(id).is_err() {
                    self.sinks.close(id);
                }
            }
            Command::Close { sink } => self.close(sink),
            Command::Submit {
                sink,
                request,
                parent,
                trace,
                body,
                reply,
            } => self.submit(sink, request, (parent, trace.as_ref()), body, reply),
            Command::Abort { sink, request } => {
                if let Some(id) = request_id(sink, request) {
                    self.planner.abort(id);
                }
            }
            Command::AbortTrace {
                sink,
                query,
                trace_ids,
            } => self.abort_trace(sink, query, trace_ids.as_deref()),
            Command::Stop { sink, request } => {
                if let Some(id) = request_id(sink, request) {
                    self.planner.stop(id);
                }
            }
            Command::UpdateWeights { wanted, reply } => self.update_weights(wanted, reply)?,
            Command::Adapters(command) => self.handle_adapters(command)?,
            Command::Drafter { command, reply } => self.command_drafters(&command, reply)?,
            Command::Health { force_step, reply } => self.ask_health(force_step, reply),
            Command::HealthLate { asked } => self.health_late(asked),
            Command::Load { reply } => {
                // The asker may have given up.
                let _ = reply.send(self.load());
            }
            Command::ListRequests { limit, reply } => {
                let _ = reply.send(self.live_requests(limit));
            }
            Command::AskFigures { metrics, reply } => {
                let ask = |query| self.sinks.ask_figures(query, metrics);
                // The asker may have given up.
                let _ = reply.send(self.figures.begin(ask));
            }
            Command::Figures { query, figures } => self.figures.answer(query, figures),
            Command::Flush { reply } => self.flush(reply),
            Command::SetDepthRange { range, reply } => {
                self.allow_depths(range);
                tracing::info!(least = range.least, most = range.most, "depths allowed");
                if let Err(error) = self.depth_range_file.store(range) {
                    let path = self.depth_range_file.path().display();
                    tracing::warn!("{path}: {error}; a restart will not know this range");
                }
                // The asker may have given up.
                let _ = reply.send(());
            }
            Command::CacheEvents { reply } => {
                let names = self.adapters.names();
                self.kv_events.subscribe(reply, &mut self.planner, &names);
            }
        }
        Ok(())
    }
}
