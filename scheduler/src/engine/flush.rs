//! Emptying the prefix cache.

use lockstep_proto::pb::lockstep::FlushCacheResponse;
use tokio::sync::oneshot;

use super::Engine;

impl Engine {
    /// Empties the cache for `reply`, or says what is in the way. Whoever has its
    /// answer may ask at once: the last steps of requests that have ended are
    /// waited for.
    pub(super) fn flush(&mut self, reply: oneshot::Sender<FlushCacheResponse>) {
        self.flushes.push(reply);
        self.answer_flushes();
    }

    /// Answers those who wait, unless steps are in flight that nobody runs in.
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
