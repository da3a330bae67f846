//! HTTP as clients speak it.

use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::server::Server;
use crate::sse::Events;

/// A whole answer.
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
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The body of a success.
    ///
    /// # Panics
    /// When it is none.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The error object, which has OpenAI's four keys.
    ///
    /// # Panics
    /// When there is none.
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
    /// A GET.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn try_get(&self, path: &str) -> reqwest::Result<Answer> {
        answer(self.client.get(self.url(path))).await
    }

    /// A GET that is answered.
    ///
    /// # Panics
    /// When it is not.
    pub async fn get(&self, path: &str) -> Answer {
        self.try_get(path).await.expect("answered")
    }

    /// A POST.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn try_post(&self, path: &str, body: &Value) -> reqwest::Result<Answer> {
        answer(self.client.post(self.url(path)).json(body)).await
    }

    /// A POST that is answered.
    ///
    /// # Panics
    /// When it is not.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.try_post(path, body).await.expect("answered")
    }

    /// A POST that succeeds.
    ///
    /// # Panics
    /// When it does not.
    pub async fn ok(&self, path: &str, body: &Value) -> Value {
        self.post(path, body).await.ok()
    }

    /// A POST whose answer is a stream, or an error.
    ///
    /// # Errors
    /// When there is no answer.
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

    /// A POST whose answer begins to stream.
    ///
    /// # Panics
    /// When it does not.
    pub async fn stream(&self, path: &str, body: &Value) -> Events {
        let answer = self.try_stream(path, body).await.expect("answered");
        answer.unwrap_or_else(|answer| panic!("no stream: {}", answer.text))
    }

    /// The metrics.
    pub async fn metrics(&self) -> crate::metrics::Metrics {
        crate::metrics::Metrics::parse(&self.get("/metrics").await.text)
    }
}

/// Sends a request and reads the whole answer.
///
/// # Errors
/// When there is no whole answer.
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
