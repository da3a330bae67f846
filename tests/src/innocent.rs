//! Somebody who asks small things while others do their worst.

use std::time::{Duration, Instant};

use reqwest::RequestBuilder;
use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::{body::counting, server::Server};

/// Between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// A client that asks `/health` and a short chat in turn.
#[derive(Debug)]
pub struct Innocent {
    stop: oneshot::Sender<()>,
    asking: JoinHandle<Times>,
}

/// How long its answers took.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Of `/health`.
    pub health: Vec<Duration>,
    /// Of the chat.
    pub chat: Vec<Duration>,
    /// What it got in place of an answer.
    pub failed: Vec<String>,
}

impl Innocent {
    /// Begins to ask; needs a server that serves.
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

    /// Stops asking.
    ///
    /// # Panics
    /// When the test's runtime ends.
    pub async fn end(self) -> Times {
        drop(self.stop);
        self.asking.await.expect("it asks until it is stopped")
    }
}

/// How long a request took, its whole answer included.
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
