//! A well-behaved client that sends small requests while others do their worst.

use std::time::{Duration, Instant};

use reqwest::RequestBuilder;
use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::{body::counting, server::Server};

/// Pause between two rounds of requests.
const PAUSE: Duration = Duration::from_millis(50);

/// A client that sends `/health` and a short chat in turn.
#[derive(Debug)]
pub struct Innocent {
    stop: oneshot::Sender<()>,
    asking: JoinHandle<Times>,
}

/// Times of the client's answers.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Times of `/health`.
    pub health: Vec<Duration>,
    /// Times of the chat.
    pub chat: Vec<Duration>,
    /// Errors that came instead of answers.
    pub failed: Vec<String>,
}

impl Innocent {
    /// Begins to send requests; needs a server that serves.
    pub fn watch(server: &Server) -> Self {
        let (stop, mut stopped) = oneshot::channel::<()>();
        let client = server.client.clone();
        let health = server.url("/health");
        let chat = server.url("/v1/chat/completions");
        let body = counting(&json!({"max_tokens": 8}));
        let asking = tokio::spawn(async move {
            let mut times = Times::default();
            while timeout(PAUSE, &mut stopped).await.is_err() {
                for (request, chats) in [
                    (client.get(&health), false),
                    (client.post(&chat).json(&body), true),
                ] {
                    match ask(request).await {
                        Ok(took) if chats => times.chat.push(took),
                        Ok(took) => times.health.push(took),
                        Err(failure) => times.failed.push(failure),
                    }
                }
            }
            times
        });
        Self { stop, asking }
    }

    /// Stops, and returns the times.
    ///
    /// # Panics
    /// Panics if the test's runtime ends.
    pub async fn end(self) -> Times {
        drop(self.stop);
        self.asking.await.expect("it asks until it is stopped")
    }
}

/// Returns the time that a request took, its complete answer included.
async fn ask(request: RequestBuilder) -> Result<Duration, String> {
    let begin = Instant::now();
    let answer = request.send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    if status.is_success() {
        Ok(begin.elapsed())
    } else {
        Err(format!("{status}: {text}"))
    }
}
