//! HTTP requests as clients send them.

use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::server::Server;
use crate::sse::Events;

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Answer {
    /// Returns the body as JSON.
    ///
    /// # Panics
    /// Panics if it is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Returns the body of a success as JSON.
    ///
    /// # Panics
    /// Panics if the answer is no success.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// Returns the error object, which must have OpenAI's four keys.
    ///
    /// # Panics
    /// Panics if there is no such object.
    pub fn error(&self) -> Value {
        let body = self.json();
        let error = body["error"].clone();
        let keys = error
            .as_object()
            .map(|error| error.keys().collect::<Vec<_>>());
        let expected = ["message", "type", "param", "code"].map(str::to_owned);
        assert_eq!(keys, Some(expected.iter().collect()), "{}", self.text);
        let said = error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty());
        assert!(said, "{}", self.text);
        error
    }
}

impl Server {
    /// Sends a GET.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn try_get(&self, path: &str) -> reqwest::Result<Answer> {
        answer(self.client.get(self.url(path))).await
    }

    /// Sends a GET that must be answered.
    ///
    /// # Panics
    /// Panics if it is not.
    pub async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.expect("answered")
    }

    /// Sends a POST.
    ///
    /// # Errors
    /// If there is no complete answer.
    pub async fn try_post(&self, path: &str, body: &Value) -> reqwest::Result<Answer> {
        answer(self.client.post(self.url(path)).json(body)).await
    }

    /// Sends a POST that must be answered.
    ///
    /// # Panics
    /// Panics if it is not.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.try_post(path, body).await.expect("answered")
    }

    /// Sends a POST that must succeed.
    ///
    /// # Panics
    /// Panics if it does not.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        self.post(path, body).await.ok()
    }

    /// Sends a POST whose answer is a stream, or an error.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn try_stream(
        &self,
        path: &str,
        body: &Value,
    ) -> reqwest::Result<Result<Events, Answer>> {
        let request = self.client.post(self.url(path)).json(body);
        let response = request.send().await?;
        let kind = response.headers().get("content-type");
        if kind.is_some_and(|kind| *kind == "text/event-stream; charset=utf-8") {
            assert_eq!(response.status().as_u16(), 200);
            return Ok(Ok(Events::new(response)));
        }
        whole(response).await.map(Err)
    }

    /// Sends a POST whose answer must begin to stream.
    ///
    /// # Panics
    /// Panics if it does not.
    pub async fn stream(&self, path: &str, body: &Value) -> Events {
        let answer = self.try_stream(path, body).await.expect("answered");
        answer.unwrap_or_else(|answer| panic!("no stream: {}", answer.text))
    }

    /// Returns the metrics.
    pub async fn metrics(&self) -> crate::metrics::Metrics {
        crate::metrics::Metrics::parse(&self.get("/metrics").await.text)
    }
}

/// Sends a request and reads the complete answer.
///
/// # Errors
/// If there is no complete answer.
pub async fn answer(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
    whole(request.send().await?).await
}

async fn whole(response: reqwest::Response) -> reqwest::Result<Answer> {
    Ok(Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.text().await?,
    })
}
