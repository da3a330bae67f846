//! Emptying the prefix cache.

use lockstep_proto::pb::lockstep::FlushCacheResponse;
use tokio::sync::oneshot;

use super::Engine;

impl Engine {
    /// Empties the cache for `reply`, or answers with the reason why not. A client may flush as
    /// soon as it has its last answer: the flush waits for the last steps of requests that have
    /// ended.
    pub(super) fn flush(&mut self, reply: oneshot::Sender<FlushCacheResponse>) {
        self.flushes.push(reply);
        self.answer_flushes();
    }

    /// Answers the waiting callers, unless steps are in flight in which no request runs any
    /// more.
    pub(super) fn answer_flushes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let answer = match self.planner.flush_cache() {
            Err(busy) if busy.running == 0 => return,
            Err(busy) => FlushCacheResponse {
                flushed: false,
                tokens: 0,
                reason: format!("{busy}; flush when the server is idle"),
            },
            Ok(tokens) => FlushCacheResponse {
                flushed: true,
                tokens,
                reason: String::new(),
            },
        };
        for reply in self.flushes.drain(..) {
            // The asker may have given up.
            let _ = reply.send(answer.clone());
        }
    }
}
